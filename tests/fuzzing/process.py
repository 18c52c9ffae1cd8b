"""A process that fuzzes: python -m tests.fuzzing.process MODULES CURRENT SEED SECONDS DECODER…

MODULES: a folder with compiled modules to take instead of the installed ones. CURRENT: a file that always holds the
input that is read, so that it is known when the process dies. What it went through goes to standard output, as JSON
(`tests.fuzzing.sanitized.Fuzzed`).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import mmap
import sys
import time
import warnings
from pathlib import Path
from typing import Final

MODULES: Final = {"afterlog.records._kernels": "records/_kernels.pyx", "afterlog.index._packing": "index/_packing.pyx"}
"""Each with its source."""
INPUT_BYTES_MAX: Final = 1 << 20
_CHUNK: Final = 200
"""Executions between two looks at the clock."""


class Note:
    """A file that holds the input that is read at the moment."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(INPUT_BYTES_MAX))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), INPUT_BYTES_MAX)

    def __call__(self, data: bytes) -> None:
        self._bytes[: 8 + len(data)] = len(data).to_bytes(8, "little") + data


def noted(path: Path) -> bytes:
    """What such a file holds."""
    held = path.read_bytes()
    return held[8 : 8 + int.from_bytes(held[:8], "little")]


def load(folder: Path) -> None:
    """The modules of the folder, before anybody imports those that are installed."""
    for module in MODULES:
        spec = importlib.util.spec_from_file_location(module, folder / f"{module.rpartition('.')[2]}.so")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def main(modules: str, current: str, seed: str, seconds: str, *names: str) -> None:
    load(Path(modules))
    from tests.fuzzing.fuzzer import DECODERS, Fuzzer, corpus_of  # these import the compiled modules

    note, told = Note(Path(current)), {}
    for name in names:
        fuzzer = Fuzzer(DECODERS[name], int(seed), note)
        ends_s = time.monotonic() + float(seconds) / len(names)
        fuzzer.begin(corpus_of(name))
        while time.monotonic() < ends_s:
            fuzzer.run(_CHUNK)
        told[name] = {
            "executions": fuzzer.executions,
            "outcomes": {outcome: data.hex() for outcome, data in fuzzer.outcomes.items()},
            "findings": {finding.told: finding.data.hex() for finding in fuzzer.findings.values()},
        }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("error")
    main(*sys.argv[1:])
