"""The served way: a store that one process has and others use, against the same work in process and against servers.

    python -m bench.served                            all of it; writes bench/results/served/<date>-<machine>.json
    python -m bench.served --size small --no-save     a look at whether it runs
    python -m bench.served --only sends,bulk          some parts; what others found earlier that day is kept
    python -m bench.served --only soak --minutes 10
    python -m bench.report                            writes the figures of the newest results into the page

Parts: sends, bulk, drain, lateness, waiting, idle, soak. Each time that one contestant does one of them is a process of
its own (`once`), so that nothing of what one has left is another one's.

Top to bottom: `run` (who does what, in which order), `once`, the parts (`work`, `lateness`, `waiting`, `soak`),
`clients` (many of them at once, and what they and the server use), `contestants`, which are the rivals of
`bench.rivals` by the real clock.
"""
