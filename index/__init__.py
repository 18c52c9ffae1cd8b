"""The indexes: offsets, positions and times, numbers only. Nothing here knows what a record is.

So each can be tested, rebuilt and replaced alone. Files are immutable once they are published; what is still written is
in memory. Begin with `entries`, then `run` (the file in delivery order) and `merge` (many of them as one).
"""
