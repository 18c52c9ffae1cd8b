"""A store for many processes: an HTTP server over an open store, by one table of endpoints (`afterlog serve`)."""
