"""The command line; it wires everything, and nobody imports it.

Commands parse, call the public surface, and print; what they work on is below. Begin with `main`.
"""
