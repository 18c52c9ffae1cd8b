"""Packing of chunks: compiled where the kernels are built, else numpy. The form is in `packed_chunk`.

    pack(deliver_after, details)   entries in delivery order -> a packed chunk; None where they cannot be packed
    unpack(data, entries)          a packed chunk of so many entries -> the same columns

The columns are those of a run's chunk: deliver_after int64[n]; relative offset, position and records as uint32[3, n],
all C-contiguous; they may be read-only, and none is kept. `unpack` raises ValueError unless the bytes are a packed
chunk of just so many entries: it reads nothing outside of them, and allocates for at most 65,536 entries. Both
implementations give the same bytes and refuse the same; tests hold one against the other.

The index has kernels of its own, apart from those of the log: it may not import the log.
"""

from __future__ import annotations

try:
    from afterlog.index._packing import pack, unpack
except ImportError:
    from afterlog.index.packed_chunk import pack, unpack

__all__ = ["pack", "unpack"]
