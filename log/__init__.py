"""The log of a partition: segments with their indexes, appends, checkpoints, retention, recovery.

It stores opaque bytes and numbers; what a record means is `records`, delivery order as readers see it is `fetch`. What
readers hold is a `version`, and every change is one swap of it. Begin with `version`, then `append`, and `recovery`,
which is read from top to bottom.
"""
