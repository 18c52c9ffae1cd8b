"""The folder of a store that nobody has open: verified, repaired, dumped.

It reads files by the same decoders as the engine, but trusts none of them. Begin with `verify`.
"""
