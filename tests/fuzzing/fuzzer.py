"""The fuzzer: bytes that nobody would write go through a decoder, and those that took a new way are mutated further.

    corpus, seeds ──> pool ──mutator, mend──> bytes ──decoder.read──> outcome
                       ^                                                │ new: into the pool
                       └────────────────────────────────────────────────┘

An execution is one input through `Decoder.read`, whatever that asks of it. A finding is an exception that the decoder
did not promise, a contradiction, more than PATIENCE_S, or more than ROOM_BYTES of memory: every one is kept with its
input, and one of a kind is told. A crash or a hang ends the process: `tests.fuzzing.sanitized` is the one that sees
those.

Own and small instead of atheris or Hypothesis: see docs/decisions/0035.
"""

from __future__ import annotations

import random
import resource
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzzing.decoder import Decoder, Finding
from tests.fuzzing.document_decoders import DOCUMENT_DECODERS
from tests.fuzzing.index_decoders import INDEX_DECODERS
from tests.fuzzing.mutator import Mutator
from tests.fuzzing.record_decoders import RECORD_DECODERS
from tests.fuzzing.wire_decoders import WIRE_DECODERS

_OURS: Final = (*RECORD_DECODERS, *INDEX_DECODERS, *DOCUMENT_DECODERS)
DECODERS: Final = {decoder.name: decoder for decoder in (*_OURS, *WIRE_DECODERS)}
SANITIZED: Final = tuple(decoder.name for decoder in _OURS)
"""Those that are run with sanitizers, too: behind the others is pyarrow, and nothing that is compiled here."""
CORPUS: Final = Path(__file__).parent.parent / "corpus"
PATIENCE_S: Final = 5.0
ROOM_BYTES: Final = 64 << 20
"""What one execution may need on top of what was needed before: inputs have 8 KiB, what is compressed up to 64 KiB."""
_MENDED: Final = 15 / 16
_POOL_MAX: Final = 2_000
_FINDINGS_MAX: Final = 20


@dataclass
class Fuzzer:
    """One decoder's. Everything random comes from the seed."""

    decoder: Decoder
    seed: int
    note: Callable[[bytes], object] = bytes
    """Is told each input before it is read, so that it is known when the process dies."""
    executions: int = 0
    pool: list[bytes] = field(default_factory=list)
    outcomes: dict[str, bytes] = field(default_factory=dict)
    """Each with the shortest input that led to it."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """One of a kind."""

    def __post_init__(self) -> None:
        self._random = random.Random(zlib.crc32(f"{self.seed} {self.decoder.name}".encode()))
        self._mutator = Mutator(self._random, self.pool)
        self._peak = _peak_bytes()

    def begin(self, corpus: Iterable[bytes] = ()) -> None:
        """Read the seeds and the corpus, all of which become the pool."""
        for data in (*self.decoder.seeds(), *corpus):
            self.pool.append(data)
            self._execute(data)

    def run(self, executions: int) -> None:
        """So many executions more."""
        for _ in range(executions):
            data = self._mutator.next()
            if self.decoder.mend is not None and self._random.random() < _MENDED:
                self.decoder.mend(data)
            self._execute(bytes(data))

    def check(self) -> None:
        """AssertionError where there is a finding."""
        if self.findings:
            raise AssertionError("\n".join(map(str, self.findings.values())))

    def _execute(self, data: bytes) -> None:
        self.executions += 1
        self.note(data)
        started_s = time.perf_counter()
        try:
            outcome = self.decoder.read(data)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.lineno}"
            self._found(kind, data, f"{kind}: {error}"[:800])
            return
        took_s, peak = time.perf_counter() - started_s, _peak_bytes()
        if took_s > PATIENCE_S:
            self._found("time", data, f"took {took_s:.1f} s")
        if peak > self._peak + ROOM_BYTES:
            self._found("memory", data, f"took {peak - self._peak:,} bytes")
        self._peak = peak
        known = self.outcomes.get(outcome)
        if known is None and len(self.pool) < _POOL_MAX:
            self.pool.append(data)
        if known is None or len(data) < len(known):
            self.outcomes[outcome] = data

    def _found(self, kind: str, data: bytes, told: str) -> None:
        known = self.findings.get(kind)
        if (known is None and len(self.findings) < _FINDINGS_MAX) or (known and len(data) < len(known.data)):
            self.findings[kind] = Finding(self.decoder.name, data, told)


def corpus_of(decoder: str) -> list[bytes]:
    """What is kept of it, in the order of the names."""
    folder = CORPUS / decoder
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)
