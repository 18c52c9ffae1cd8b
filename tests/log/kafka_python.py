"""kafka-python, the outside check of our batches. Importing it warns of a function it should no longer call."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec as codec
    import kafka.record.default_records as records
    import kafka.record.memory_records as memory_records

__all__ = ["codec", "memory_records", "records"]
