"""The indexes: offsets, positions and times, numbers only. Nothing here knows what a record is."""
