"""The fetch: merge, timeline, positions, consumer."""
