from __future__ import annotations

import crc32c
import numpy as np
import pytest

from afterlog.base.errors import CorruptRemote, RemoteMissing
from afterlog.log.facts import FileMark
from afterlog.tier import verify_upload as verify_module
from afterlog.tier.remote_url import open_remote
from afterlog.tier.verify_upload import verify
from tests.support import flipped
from tests.tier.faulty_remote_store import FaultyRemoteStore

DATA = bytes(np.arange(1_000, dtype=np.uint16).view(np.uint8))
MARK = FileMark(len(DATA), crc32c.crc32c(DATA))


@pytest.mark.parametrize("step", [1, 999, 1_000, 1_999, 2_000, 2_001])
def test_an_object_is_read_once_in_pieces(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(verify_module, "_READ_BYTES", step)
    remote = FaultyRemoteStore(open_remote("memory://"), lambda operation, call: None)
    remote.put("a", DATA)
    verify(remote, "a", MARK)
    assert 2 + -(-len(DATA) // step) == remote.calls


@pytest.mark.parametrize("position", [0, 999, 1_999])
def test_a_wrong_bit_is_seen(position: int) -> None:
    remote = open_remote("memory://")
    remote.put("a", flipped(DATA, position))
    with pytest.raises(CorruptRemote, match="CRC-32C"):
        verify(remote, "a", MARK)


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\0"])
def test_another_size_is_seen_without_reading(data: bytes) -> None:
    remote = FaultyRemoteStore(open_remote("memory://"), lambda operation, call: None)
    remote.put("a", data)
    with pytest.raises(CorruptRemote, match=f"{len(data)} bytes, where 2000"):
        verify(remote, "a", MARK)
    assert 2 == remote.calls


def test_what_is_missing_is_missing() -> None:
    with pytest.raises(RemoteMissing):
        verify(open_remote("memory://"), "a", MARK)
    open_remote("memory://").put("b", b"")


def test_an_empty_file() -> None:
    remote = open_remote("memory://")
    remote.put("a", b"")
    verify(remote, "a", FileMark(0, 0))
