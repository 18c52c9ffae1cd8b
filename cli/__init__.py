"""The command line; it wires everything, and nobody imports it."""
