from __future__ import annotations

import numpy as np
import pytest

from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Bytes
from afterlog.records import kernels
from afterlog.records.batch import Headers, Record, decode_batch, encode_batch, validate_batch
from afterlog.records.control import Control, ControlType, read_controls
from afterlog.records.encode import EncodedBatches, parse
from afterlog.records.header import CONTROL, HEADER_BYTES, BatchHeader, with_crc
from tests.index.support import int64
from tests.support import NOW_MS, small

KEY = bytes.fromhex("000003E8")
VALUE = bytes.fromhex("0000000000000007 0000018BCFE65260")


def control_of(*targets: tuple[int, int], kind: ControlType = ControlType.CANCEL) -> Control:
    target, due = (int64(*column) for column in zip(*targets, strict=True))
    follower = parse(encode_batch([Record(value=b"again", timestamp=5)]), NOW_MS + 9, small())
    return Control(kind, target, due, follower if kind is ControlType.RESCHEDULE else None)


def entries_of(controls: list[Control], base_offset: int = 41) -> Bytes:
    """A stretch of log."""
    pieces, offset = [], base_offset
    for control in controls:
        batches = control.batches(NOW_MS)
        data, _ = batches.entries(0, len(batches), offset, NOW_MS, delayed=True, extra=b"")
        assert control.records == int(batches.records.sum())
        assert int(batches.positions[-1]) <= control.size_max
        pieces.append(data)
        offset += control.records
    return np.concatenate(pieces)


def scanned(data: Bytes) -> kernels.Scan:
    scan = kernels.scan_entries(data, 0, -1, -1, True)
    assert not scan.fault
    return scan


def foreign(key: bytes | None, value: bytes, records: int = 1, headers: Headers = ()) -> Bytes:
    """An entry with a control batch of somebody else."""
    batch = encode_batch([Record(key=key, value=value, timestamp=0, headers=headers)] * records)
    header = BatchHeader.read(memoryview(batch), 0)._replace(attributes=CONTROL)
    data = np.frombuffer(with_crc(header, batch[HEADER_BYTES:]), np.uint8)
    one = int64(records)
    batches = EncodedBatches(int64(0, len(data)), one, int64(NOW_MS), int64(0), data)
    return batches.entries(0, 1, 41, NOW_MS, delayed=True, extra=b"")[0]


@pytest.mark.parametrize("due_ms", [NOW_MS + 1, 2**63 - 1])
@pytest.mark.parametrize("target", [0, 7, 2**40])
def test_of_one_target_the_short_way_gives_the_same(target: int, due_ms: int) -> None:
    control = control_of((target, due_ms))
    assert control.is_one
    assert entries_of([control]).tobytes() == control.entry_of_one(41, NOW_MS)
    assert not control_of((7, due_ms), (8, due_ms)).is_one
    assert not control_of((7, due_ms), kind=ControlType.RESCHEDULE).is_one
    assert not Control.of_note(ControlType.SNAPSHOT, b"x").is_one


def test_the_example() -> None:
    control = control_of((7, 1_700_000_060_000))
    batch, _ = control.batches(NOW_MS).encoded(0, 1)
    [record] = decode_batch(batch, limit_bytes=1_000)
    assert (KEY, VALUE, NOW_MS) == (record.key, record.value, record.timestamp)
    assert CONTROL == BatchHeader.read(memoryview(batch), 0).attributes
    with pytest.raises(InvalidBatch, match="control"):
        validate_batch(batch, limit_bytes=1_000)


def test_what_was_written_is_read() -> None:
    first, second = control_of((7, NOW_MS + 5), (3, NOW_MS + 9)), control_of((8, NOW_MS + 7))
    again = control_of((9, NOW_MS + 8), kind=ControlType.RESCHEDULE)
    data = entries_of([first, again, second])
    scan = scanned(data)
    assert [NOW_MS + 9, NOW_MS + 8, NOW_MS + 9, NOW_MS + 7] == scan.deliver_after.tolist()
    controls = read_controls(data, scan)
    assert [0, 1, 3] == controls.row.tolist()
    assert [1_000, 1_001, 1_000] == controls.type.tolist()
    assert [41, 41, 42, 44] == controls.cancelled.control.tolist()
    assert [7, 3, 9, 8] == controls.cancelled.target.tolist()
    assert [NOW_MS + due for due in (5, 9, 8, 7)] == controls.cancelled.deliver_after.tolist()
    assert np.array_equal(first.rows(41).to_bytes(), controls.cancelled.before(42).to_bytes())


def test_only_targets_that_are_due_after_the_stamp() -> None:
    control = control_of((1, NOW_MS + 1), (2, NOW_MS), (3, NOW_MS + 2))
    assert [1, 3] == control.later_than(NOW_MS).target.tolist()
    assert [] == control.later_than(NOW_MS + 2).target.tolist()


@pytest.mark.parametrize(
    "data",
    [
        foreign(KEY, VALUE[:-1]),
        foreign(KEY, b""),
        foreign(KEY[:-1], VALUE),
        foreign(None, VALUE),
        foreign(bytes.fromhex("000103E8"), VALUE),
        foreign(bytes.fromhex("00000001"), VALUE),
        foreign(KEY, bytes.fromhex("0000000000000029") + VALUE[8:]),
        foreign(KEY, b"\xff" + VALUE[1:]),
        foreign(KEY, VALUE, records=2),
        foreign(KEY, VALUE, headers=[("deliver-after", b"soon")]),
    ],
    ids=["torn", "no target", "short key", "no key", "version", "type", "later", "negative", "two records", "header"],
)
def test_what_is_none_of_ours_is_refused(data: Bytes) -> None:
    with pytest.raises(InvalidBatch):
        read_controls(data, scanned(data))
