"""The folder of a store that nobody has open: verified, repaired, dumped."""
