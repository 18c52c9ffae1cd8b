from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base import document
from afterlog.base.errors import CorruptRemote, InvalidTopic, RemoteConflict, RemoteError, RemoteUnavailable
from afterlog.tier import manifest as manifest_module
from afterlog.tier.manifest import FORMAT, VERSION, Manifest, Segments, check, decode, encode
from afterlog.tier.remote_segment import SegmentState
from tests.support import Background, Gate, flipped
from tests.tier.faulty_remote_store import Crashed, Fault, FaultyRemoteStore, fault_at, hold
from tests.tier.support import PARTITION, attempt, disk, row, simulated_manifest
from tests.tier.test_remote_segment import HOSTILE


def forged(body: Any) -> bytes:
    return document.encode(FORMAT, VERSION, body)


def adding(number: int, base_offset: int = 0) -> Callable[[Segments], Segments]:
    new = row(number, base_offset)
    return lambda rows: rows if new in rows else (*rows, new)


class TestFormat:
    @given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(list(SegmentState)[:3])), max_size=8))
    def test_what_is_encoded_is_decoded_unless_it_breaks_an_invariant(
        self, places: list[tuple[int, SegmentState]]
    ) -> None:
        rows = tuple(row(number, 60 * place, state) for number, (place, state) in enumerate(sorted(places)))
        listed = [one.base_offset for one in rows if one.state == SegmentState.COPY_FINISHED]
        if any(after - before < 100 for before, after in pairwise(listed)):
            with pytest.raises(ValueError, match="listed twice"):
                encode(PARTITION, rows)
        else:
            assert rows == decode(PARTITION, encode(PARTITION, rows)).segments

    def test_invariants(self) -> None:
        for rows in (
            (row(2), row(1, state="COPY_STARTED")),
            (row(1), row(1, 100)),
            (row(1, state="DELETE_FINISHED"),),
            (row(1), row(2, 99)),
        ):
            with pytest.raises(ValueError):  # noqa: PT011
                check(rows)
        check((row(1), row(2, state="COPY_STARTED"), row(3, state="DELETE_STARTED"), row(4, 100)))

    def test_every_bit_and_every_length_is_checked(self) -> None:
        data = encode(PARTITION, (row(1),))
        for position in range(len(data)):
            for harmed in (flipped(data, position), data[:position]):
                with pytest.raises(CorruptRemote):
                    decode(PARTITION, harmed)

    @pytest.mark.parametrize("change", HOSTILE, ids=str)
    def test_a_hostile_row(self, change: dict[str, Any]) -> None:
        with pytest.raises(CorruptRemote, match="cannot be"):
            decode(PARTITION, forged({"partition": PARTITION, "segments": [{**row(7).to_json(), **change}]}))

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"partition": PARTITION}, {"partition": "mail-1", "segments": []}, {"partition": None, "segments": []},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_hostile_document(self, body: dict[str, Any]) -> None:
        with pytest.raises(CorruptRemote) as caught:
            decode(PARTITION, forged(body))
        assert len(str(caught.value)) < 600

    @pytest.mark.parametrize(
        "rows",
        [
            None, 7, "ab", {"a": 1}, [None], [7], ["ab"], [[]], [{}],
            [row(1).to_json(), row(2, 50).to_json()], [row(1).to_json()] * 2, [row(1, 100).to_json(), row(2).to_json()],
        ],
        ids=str,
    )  # fmt: skip
    def test_hostile_rows(self, rows: object) -> None:
        self.test_a_hostile_document({"partition": PARTITION, "segments": rows})

    @pytest.mark.parametrize("name", ["", "mail", "mail-", "../mail-0", "a/b-0", "mail-0/..", "x" * 1_000, "mail-00"])
    def test_only_partitions_have_one(self, name: str) -> None:
        with pytest.raises(InvalidTopic):
            Manifest(simulated_manifest(disk()).remote, name)


class TestManifest:
    def test_rows_come_and_go(self) -> None:
        manifest = simulated_manifest(disk())
        assert () == manifest.read()
        manifest.update(adding(2, 100))
        assert (row(1), row(2, 100)) == manifest.update(adding(1)) == manifest.read() == manifest.listed()
        rows = manifest.move({attempt(1)}, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)
        assert (row(1, state="DELETE_STARTED"), row(2, 100)) == rows
        assert (row(2, 100),) == manifest.listed()
        assert rows == manifest.move({attempt(1)}, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)
        left = manifest.move({attempt(1)}, SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)
        assert (row(2, 100),) == left
        assert left == manifest.move({attempt(1)}, SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED)
        assert (row(2, 100),) == manifest.read()

    def test_no_change_is_no_write(self) -> None:
        remote = FaultyRemoteStore(simulated_manifest(disk()).remote, lambda operation, call: None)
        Manifest(remote, PARTITION).update(lambda rows: rows)
        assert 1 == remote.calls

    def test_what_breaks_an_invariant_is_not_written(self) -> None:
        manifest = simulated_manifest(disk())
        manifest.update(adding(1))
        with pytest.raises(ValueError, match="listed twice"):
            manifest.update(adding(2, 50))
        with pytest.raises(ValueError, match="step"):
            manifest.move({attempt(1)}, SegmentState.COPY_FINISHED, SegmentState.COPY_STARTED)
        assert (row(1),) == manifest.read()

    def test_who_is_second_changes_what_the_first_wrote(self) -> None:
        manifest = simulated_manifest(disk())
        gate = Gate()
        slow = Manifest(FaultyRemoteStore(manifest.remote, hold("put_if", gate)), PARTITION)
        second = Background(lambda: slow.update(adding(2, 100)))
        gate.came()
        manifest.update(adding(1))
        gate.open()
        assert (row(1), row(2, 100)) == second.answer() == manifest.read()

    @pytest.mark.parametrize("fault", list(Fault))
    def test_a_fault_loses_no_row_and_doubles_none(self, fault: Fault) -> None:
        for call in range(1, 4):
            manifest = simulated_manifest(disk())
            manifest.update(adding(1))
            with contextlib.suppress(RemoteError, Crashed):
                Manifest(FaultyRemoteStore(manifest.remote, fault_at(call, fault)), PARTITION).update(adding(2, 100))
            if (fault, call) == (Fault.TRUNCATED, 2):  # a storage that cuts what it was given: that much can be seen
                with pytest.raises(CorruptRemote):
                    manifest.read()
            else:
                assert manifest.read() in ((row(1),), (row(1), row(2, 100)))
                assert (row(1), row(2, 100)) == manifest.update(adding(2, 100))

    def test_a_client_that_repeats_a_write_is_no_conflict(self) -> None:
        manifest = simulated_manifest(disk())
        repeating = Manifest(FaultyRemoteStore(manifest.remote, fault_at(2, Fault.TWICE)), PARTITION)
        assert (row(1),) == repeating.update(adding(1)) == manifest.read()

    def test_who_never_comes_first_gives_up(self) -> None:
        manifest = simulated_manifest(disk())

        class Crowded(FaultyRemoteStore):
            def put_if(self, key: str, data: object, version: str | None) -> str:
                raise RemoteConflict("always", path=key)

        with pytest.raises(RemoteConflict, match="100 times"):
            Manifest(Crowded(manifest.remote, lambda operation, call: None), PARTITION).update(adding(1))

    def test_while_it_remembers_changes_need_no_read(self) -> None:
        manifest, seen = simulated_manifest(disk()), list[str]()
        remembering = Manifest(
            FaultyRemoteStore(manifest.remote, lambda operation, call: seen.append(operation)), PARTITION
        )
        with remembering.remembering():
            assert () == remembering.known.segments
            remembering.update(adding(1))
            remembering.update(adding(2, 100))
            assert (row(1), row(2, 100)) == remembering.known.segments == manifest.read()
            assert ["get", "put_if", "put_if"] == seen
            assert (row(1), row(2, 100)) == remembering.read()
        remembering.update(adding(3, 200))
        assert ["get", "put_if", "put_if", "get", "get", "put_if"] == seen

    def test_what_it_remembers_decides_nothing(self) -> None:
        """Neither that there is something to change, nor that there is nothing."""
        manifest = simulated_manifest(disk())
        old = Manifest(manifest.remote, PARTITION)
        with old.remembering():
            manifest.update(adding(1))
            assert (row(1), row(2, 100)) == old.update(adding(2, 100)) == manifest.read()
            manifest.update(lambda rows: ())
            assert (row(1),) == old.update(adding(1)) == manifest.read()

    @pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.TWICE])
    def test_a_fault_while_it_remembers_loses_no_row_and_doubles_none(self, fault: Fault) -> None:
        for call in range(1, 6):
            manifest = simulated_manifest(disk())
            faulty = Manifest(FaultyRemoteStore(manifest.remote, fault_at(call, fault)), PARTITION)
            with contextlib.suppress(RemoteUnavailable), faulty.remembering():
                for number in range(3):
                    with contextlib.suppress(RemoteUnavailable):
                        faulty.update(adding(number, 100 * number))
                    assert faulty.known == manifest.content()
            for number in range(3):
                manifest.update(adding(number, 100 * number))
            assert (row(0), row(1, 100), row(2, 200)) == manifest.read()

    def test_a_manifest_that_is_too_large_is_neither_read_nor_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        manifest = simulated_manifest(disk())
        manifest.update(adding(1))
        monkeypatch.setattr(manifest_module, "SIZE_MAX", len(encode(PARTITION, (row(1),))) + 9)
        with pytest.raises(CorruptRemote, match="too large"):
            manifest.update(adding(2, 100))
        monkeypatch.setattr(manifest_module, "SIZE_MAX", 100)
        with pytest.raises(CorruptRemote, match="at most 100"):
            manifest.read()

    def test_an_outage_is_no_empty_manifest(self) -> None:
        manifest = simulated_manifest(disk())
        manifest.update(adding(1))
        with pytest.raises(RemoteUnavailable):
            Manifest(FaultyRemoteStore(manifest.remote, fault_at(1, Fault.BEFORE)), PARTITION).read()

    def test_errors_name_the_key(self) -> None:
        manifest = simulated_manifest(disk())
        manifest.remote.put_if(manifest.key, b"junk", None)
        with pytest.raises(CorruptRemote) as caught:
            manifest.read()
        assert Path("mail-0/manifest") == caught.value.path
