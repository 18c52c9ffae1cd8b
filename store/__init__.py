"""The embedded engine: one open folder with its lock, its topics, and what is done to them as a whole.

Records, logs and subscriptions are the folders below; who else may use the store (a server, its clients, processes that
share it) is above. Begin with `store`, whose methods are the surface of all of them; `topics` is what it has open.
"""
