"""A store in another process: the names of the embedded engine, over HTTP. `afterlog.connect` makes it.

What is asked is written once, as steps that do no I/O (`store_steps`, `subscription_steps`, `consumer_steps`); a pool
of connections performs them for threads, another one for tasks. numpy is not imported. Begin with `call` and
`store_steps`.
"""
