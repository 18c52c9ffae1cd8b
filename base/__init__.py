"""The foundation: errors, settings, file names, and the seams to disk, time, network and surroundings.

It knows nothing of logs. Whatever touches a disk, a clock, a socket or an environment variable does so through `files`,
`clock`, `sockets` or `environment`, so that tests can put another in its place. Begin with `errors`, then `files`.
"""
