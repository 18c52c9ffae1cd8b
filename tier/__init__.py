"""Tiered storage: sealed segments in object storage, a manifest that lists them, and what compares the two."""
