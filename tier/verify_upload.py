"""Whether an uploaded object is what was put: its size, and our own CRC-32C of the bytes read back.

No S3 server that was tried checks a CRC-32C which it is sent, and an e-tag is whatever the storage likes. So the only
proof is to read the object. It costs one HEAD, one GET for each 8 MiB, as many bytes down as went up, and 8 MiB of
memory; inside one region the bytes are mostly free.
"""

from __future__ import annotations

from afterlog.base.checksum import crc32c
from afterlog.base.errors import CorruptRemote
from afterlog.log.facts import FileMark
from afterlog.tier.manifest import Manifest
from afterlog.tier.remote_segment import RemoteSegment
from afterlog.tier.remote_store import RemoteStore

_READ_BYTES = 8 << 20


def verify_segment(manifest: Manifest, segment: RemoteSegment) -> None:
    """Verify each object of the segment."""
    for suffix, mark in segment.files.items():
        verify(manifest.remote, manifest.object_key(segment, suffix), mark)


def verify(remote: RemoteStore, key: str, mark: FileMark) -> None:
    """RemoteMissing; CorruptRemote where size or bytes are others."""
    size = remote.head(key).size
    if size != mark.size:
        raise CorruptRemote(f"{size} bytes, where {mark.size} were put", path=key)
    crc = 0
    for start in range(0, size, _READ_BYTES):
        [data] = remote.get_ranges(key, [(start, min(start + _READ_BYTES, size))])
        crc = crc32c(data, crc)
    if crc != mark.crc:
        raise CorruptRemote(f"CRC-32C {crc:08x}, where {mark.crc:08x} was put", path=key)
