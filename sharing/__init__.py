"""A store that several processes open: whoever has its lock serves the others, and another takes over when it goes.

It joins `server` and `client`, and has no protocol of its own. Begin with `shared`; `standby` is who comes next.
"""
