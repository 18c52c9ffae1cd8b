"""Topics that several clusters have: what is appended to one comes to the others.

A link copies one log in one direction, in append order; subscriptions follow by markers in the logs (PIP-33). It keeps
nothing on disk but those. Begin with `link`, then `replicator` for all directions, `subscriptions` for acks.
"""
