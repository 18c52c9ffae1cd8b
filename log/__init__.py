"""The log of a partition: segments with their indexes, appends, checkpoints, retention, recovery."""
