"""A store for many processes: an HTTP server over an open store, by one table of endpoints (`afterlog serve`).

No framework is in between (`connection`, `exchange`, `app`); the engine's blocking calls go to a few threads. It has no
state that a restart would lose: leases are in the journals. Begin with `table`, then `endpoint` and one of the `*_api`;
`running` is the process.
"""
