"""What can be asked of a store over HTTP: figures, schemas, and how values are written for the wire.

Nothing here performs anything: the embedded engine, the client and the server do. What the calls mean is said in
`afterlog.surface`. Begin with `record_json` for what a record looks like in JSON, and `problem` for an error.
"""
