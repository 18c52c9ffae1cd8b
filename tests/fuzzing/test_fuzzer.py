"""Every decoder on bytes that nobody would write: a share here, in a whole run with sanitizers. And the fuzzer sees.

A run of an hour is `make fuzz`: `tests.fuzzing.long_run`.
"""

from __future__ import annotations

from pathlib import Path

import cramjam
import pytest

from afterlog.base.errors import InvalidBatch
from afterlog.base.files import Data
from afterlog.index import run_format
from afterlog.records import compression, pure
from afterlog.records.columns import view_of
from afterlog.records.varint import read_zigzag
from tests import campaigns
from tests.fuzzing import sanitized
from tests.fuzzing.fuzzer import CORPUS, DECODERS, SANITIZED, Fuzzer, corpus_of
from tests.fuzzing.process import Note, noted

pytestmark = pytest.mark.usefixtures("quiet")
EXECUTIONS = 2_000 if campaigns.WHOLE else 80 * campaigns.DEPTH
SANITIZED_S = 20 if campaigns.WHOLE else 30 * campaigns.DEPTH
PARTS = 2
"""Of the decoders with sanitizers: a process each."""
CORPUS_BYTES_MAX = 200_000


@pytest.mark.parametrize("name", DECODERS)
def test_values_or_the_errors_that_are_promised(name: str) -> None:
    fuzzer = Fuzzer(DECODERS[name], campaigns.SEED)
    fuzzer.begin(corpus_of(name))
    fuzzer.run(EXECUTIONS)
    campaigns.count("fuzzed executions", fuzzer.executions)
    fuzzer.check()


def test_a_seed_makes_the_same_bytes_again() -> None:
    read: list[list[bytes]] = [[], []]
    for inputs in read:
        fuzzer = Fuzzer(DECODERS["time-index"], 7, inputs.append)
        fuzzer.begin()
        fuzzer.run(50)
    assert read[0] == read[1]


def test_the_corpus_is_of_these_decoders_and_small() -> None:
    assert {*DECODERS} == {folder.name for folder in CORPUS.iterdir()}
    sizes = {name: sum(map(len, corpus_of(name))) for name in DECODERS}
    assert 0 < min(sizes.values())
    assert sum(sizes.values()) < CORPUS_BYTES_MAX


@pytest.mark.parametrize("name", [name for name, decoder in DECODERS.items() if decoder.mend])
def test_what_is_right_stays_so_when_it_is_mended(name: str) -> None:
    decoder = DECODERS[name]
    mend = decoder.mend
    assert mend is not None
    for seed in decoder.seeds():
        mended = bytearray(seed)
        mend(mended)
        assert decoder.read(seed) == decoder.read(bytes(mended))


def test_what_a_process_was_at_is_known_when_it_has_died(tmp_path: Path) -> None:
    note = Note(tmp_path / "current")
    for data in (b"longer", b"last"):
        note(data)
    assert b"last" == noted(tmp_path / "current")


# ---- planted bugs


def found(name: str, executions: int) -> str:
    """What a fuzzer tells of a decoder within so many executions."""
    fuzzer = Fuzzer(DECODERS[name], campaigns.SEED)
    fuzzer.begin()
    while not fuzzer.findings and fuzzer.executions < executions:
        fuzzer.run(10)
    return "\n".join(map(str, fuzzer.findings.values()))


def test_planted_bug_is_caught_a_bound_that_nobody_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_nullable(batch: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
        size, position = read_zigzag(batch, position, end, 32)
        return (None, position) if size < 0 else (batch[position : position + size].tobytes(), position + size)

    monkeypatch.setattr(pure, "_read_nullable", read_nullable)
    assert "they differ" in found("records", 5_000)


def test_planted_bug_is_caught_a_directory_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_format, "_check_places", lambda *places: None)
    assert "Error at" in found("run", 5_000)


def test_planted_bug_is_caught_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    def decompress(codec: int, data: Data, limit_bytes: int) -> bytes:
        if codec != 4:
            raise InvalidBatch("not zstd")
        try:
            return bytes(cramjam.zstd.decompress(view_of(data)))
        except cramjam.DecompressionError as error:
            raise InvalidBatch(str(error)) from error

    monkeypatch.setattr("tests.fuzzing.record_decoders.decompress", decompress)
    assert decompress(4, compression.compress(4, b"a"), 1) == b"a"
    assert "AssertionError" in found("compression", 5_000)


# ---- with sanitizers, in long runs: to compile takes longer than all the rest


def planted(source: str) -> str:
    """The compiled modules without two checks."""
    for check, instead in (
        ("if record_bytes < 1 or record_bytes > end - at:", "if record_bytes < 1:"),
        ("if needed != size - at:", "if needed < 0:"),
    ):
        source = source.replace(check, instead)
    return source


if campaigns.WHOLE or campaigns.DEPTH > 1:

    @pytest.mark.parametrize("part", range(PARTS))
    def test_with_sanitizers(part: int, tmp_path: Path) -> None:
        names = [*SANITIZED[part::PARTS]]
        done = sanitized.fuzz(sanitized.build(tmp_path), campaigns.SEED, SANITIZED_S, names)
        campaigns.count("fuzzed executions, with sanitizers", sum(done.executions.values()))
        assert [] == [str(finding) for finding in done.findings]

    def test_planted_bug_is_caught_by_a_sanitizer(tmp_path: Path) -> None:
        modules = sanitized.build(tmp_path, planted)
        for name in ("records", "packed-chunk"):
            with pytest.raises(AssertionError, match=r"(?s)it died with .*AddressSanitizer"):
                sanitized.fuzz(modules, campaigns.SEED, 30, [name])
