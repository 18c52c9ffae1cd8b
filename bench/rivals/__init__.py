"""The comparison: the same work done by afterlog, by what people would use instead, and by a bare floor.

    python -m bench.rivals                     all of it; writes bench/results/<date>-<machine>.json
    python -m bench.rivals --size small        a look at whether it runs
    python -m bench.rivals --only afterlog,sqlite --rounds 1 --no-save
    python -m bench.report                     writes the figures of the newest results into docs/benchmarks.md

Top to bottom: `run` (who does what, in which order), `phases` (one phase in a process of its own), one module for each
rival, `rival` (what each of them can do), `load` (what there is to do), `server` (processes of others, started here and
stopped here).
"""
