"""A store in another process: the names of the embedded engine, over HTTP. `afterlog.connect` makes it."""
