"""What can be asked of a store, whoever has the folder: the surface, its figures, and how values are written for the
wire.

Nothing here performs anything: the embedded engine, the client and the server do. Begin with `surface`, then
`record_json` for what a record looks like in JSON and `problem` for an error.
"""
