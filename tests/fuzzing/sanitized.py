"""The compiled modules a second time, with address and undefined-behaviour sanitizers, in a process of their own.

    .pyx ── cython ──> .c ── gcc -fsanitize=address,undefined ──> folder/_kernels.so, folder/_packing.so
    python, libasan preloaded ── loads those instead of the installed ones ──> fuzzes ──> what it went through

A sanitizer ends the process at the first fault, an allocation beyond ALLOCATION_MB too, and one that hangs is ended:
the input that it was at is told. Needs gcc on Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fuzzing.decoder import Finding
from tests.fuzzing.process import MODULES, noted

ROOT: Final = Path(__file__).parent.parent.parent
ALLOCATION_MB: Final = 160
"""In one piece: inputs have some KiB. zstd's library asks for a window of up to 128 MiB, and touches what it fills."""
_FLAGS: Final = (
    "-g1",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)
_PATIENCE_S: Final = 120
"""How much longer than it was told a process may take before it counts as one that hangs."""


@dataclass(frozen=True)
class Fuzzed:
    """What a process went through, by decoder."""

    executions: dict[str, int]
    outcomes: dict[str, dict[str, bytes]]
    """Each with the shortest input that led there."""
    findings: list[Finding]


def build(folder: Path, plant: Callable[[str], str] = str) -> Path:
    """Both modules, into `folder`, which it returns. `plant`: what is done to their sources first."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda module: _build(folder, module, plant), MODULES))
    return folder


def _build(folder: Path, module: str, plant: Callable[[str], str]) -> None:
    name = module.rpartition(".")[2]
    source, code = folder / f"{name}.pyx", folder / f"{name}.c"
    source.write_text(plant((ROOT / MODULES[module]).read_text("utf-8")), "utf-8")
    _call(sys.executable, "-m", "cython", "--module-name", module, "-o", str(code), str(source))
    include = sysconfig.get_paths()["include"]
    _call("gcc", "-shared", "-fPIC", *_FLAGS, f"-I{include}", str(code), "-o", str(folder / f"{name}.so"))


def fuzz(modules: Path, seed: int, seconds: float, names: Sequence[str], current: Path | None = None) -> Fuzzed:
    """Decoders, each for an equal part of the time, in a process of their own. AssertionError: it dies or hangs.

    current: where it notes the input that it is at.
    """
    current = current or modules / "current"
    command = [
        sys.executable,
        "-m",
        "tests.fuzzing.process",
        str(modules),
        str(current),
        str(seed),
        str(seconds),
        *names,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "LD_PRELOAD": " ".join(_call("gcc", f"-print-file-name={name}.so") for name in ("libasan", "libubsan")),
        "ASAN_OPTIONS": f"detect_leaks=0:max_allocation_size_mb={ALLOCATION_MB}:allocator_may_return_null=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + _PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it hangs at bytes.fromhex({noted(current).hex()!r})") from None
    told = done.stderr[:6_000]
    assert done.returncode == 0, f"it died with {done.returncode} at bytes.fromhex({noted(current).hex()!r})\n{told}"
    return _fuzzed(json.loads(done.stdout))


def _fuzzed(told: dict[str, dict[str, Any]]) -> Fuzzed:
    return Fuzzed(
        {name: row["executions"] for name, row in told.items()},
        {name: {way: bytes.fromhex(data) for way, data in row["outcomes"].items()} for name, row in told.items()},
        [
            Finding(name, bytes.fromhex(data), text)
            for name, row in told.items()
            for text, data in row["findings"].items()
        ],
    )


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4_000:]}"
    return done.stdout.strip()
