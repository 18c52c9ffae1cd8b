"""The fetch: timeline, positions, consumer."""
