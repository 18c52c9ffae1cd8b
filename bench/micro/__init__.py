"""The parts that the paths are made of, one by one: `make bench-compare` holds them against a committed baseline."""
