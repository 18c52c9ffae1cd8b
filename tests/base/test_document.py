from __future__ import annotations

import errno
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base import document
from afterlog.base.errors import CorruptFile, StorageFull
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import Calls, flipped, power_cut

PATH = Path("/position")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3),
    max_leaves=5,
)


def test_example_of_the_head() -> None:
    data = document.encode("afterlog-position", 1, {"position": 1_024})
    line, body = data.split(b"\n", 1)
    assert b'{"position":1024}\n' == body
    assert b"afterlog-position 1 %08x" % crc32c.crc32c(body) == line


@given(st.dictionaries(st.text(), json_values, max_size=3))
def test_what_is_encoded_is_decoded(body: dict[str, object]) -> None:
    data = document.encode("name", 3, body)
    assert body == document.decode("name", 3, data, PATH)
    assert data.count(b"\n") == 2


def test_every_bit_and_every_length_is_checked() -> None:
    data = document.encode("name", 3, {"a": [1, "x"]})
    for position in range(len(data)):
        for harmed in (flipped(data, position), data[:position]):
            with pytest.raises(CorruptFile) as raised:
                document.decode("name", 3, harmed, PATH)
            assert PATH == raised.value.path


@pytest.mark.parametrize(("name", "version"), [("other", 3), ("name", 2), ("name", 4)])
def test_another_name_or_version(name: str, version: int) -> None:
    with pytest.raises(CorruptFile, match=f"{name} document of version {version}"):
        document.decode(name, version, document.encode("name", 3, {}), PATH)


@pytest.mark.parametrize("body", [b"", b"{", b"[]\n", b"7", b"\xff{}", b"[" * 100_000])
def test_an_intact_checksum_over_no_object(body: bytes) -> None:
    data = b"name 3 %08x\n" % crc32c.crc32c(body) + body
    with pytest.raises(CorruptFile, match=r"not (JSON|a JSON object)"):
        document.decode("name", 3, data, PATH)


def test_write_is_durable_and_read_back() -> None:
    files = SimulatedFiles()
    with pytest.raises(FileNotFoundError):
        document.read(files, PATH, "name", 3)
    for body in ({"a": 1}, {"b": 2}):
        document.write(files, PATH, "name", 3, body)
        assert body == document.read(power_cut(files), PATH, "name", 3)
    assert [PATH.name] == files.names(PATH.parent)


@pytest.mark.parametrize("operation", ["create", "append", "rename"])
def test_a_failed_write_leaves_the_old_document(operation: str) -> None:
    files, calls = SimulatedFiles(), Calls()
    document.write(files, PATH, "name", 3, {"a": 1})
    calls.fail(operation, "", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageFull):
        document.write(FailingFiles(files, calls), PATH, "name", 3, {"b": 2})
    assert {"a": 1} == document.read(files, PATH, "name", 3)
    document.write(FailingFiles(files, calls), PATH, "name", 3, {"b": 2})
    assert {"b": 2} == document.read(files, PATH, "name", 3)
