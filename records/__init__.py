"""What bytes mean: batches and entries, encoded and decoded, one at a time or as columns.

Nobody else packs or parses bytes of a log. The loops over records are kernels (`_kernels.pyx`), each with a plain twin
in `pure`, its oracle; `kernels` takes what is there. Begin with `entry` and `header`, where the formats are drawn.
"""
