"""afterlog under the task frameworks that Python people have: an adapter each, thin, on the public surface alone.

What is due later waits in the log, not in a worker's memory, nor behind a visibility timeout. An adapter opens the
store when it is first used, one in each process (`places`), and needs its framework, an extra of that name. It is no
second engine: leases, dead letters and cancels are the store's. Begin with `dramatiq`.
"""
