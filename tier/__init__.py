"""Tiered storage: sealed segments in object storage, a manifest that lists them, and what compares the two.

The log reads them through a seam of its own (`log/remote_copy.py`), and does not know where they lie. Nothing local
goes before its copy is verified. Begin with `remote_store` and `manifest`, then `tiering`.
"""
