"""Spark jobs over segments. Empty so far: bulk indexing and upload come with their own issue (docs/roadmap.md)."""
