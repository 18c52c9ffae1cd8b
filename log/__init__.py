"""The log: record batches, entries, segments, append, recovery, retention, producer."""
