"""What the benchmarks share: the interleaved measurement as a fixture, and what is printed before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.harness import Pair, machine, record

Measure = Callable[..., dict[str, Any]]
_lines: list[str] = []


def pytest_report_header() -> list[str]:
    return [f"{name}: {value}" for name, value in machine().items()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("per operation, medians; the ratio is of CPU time")
    for line in _lines:
        terminalreporter.write_line(line)


def pytest_benchmark_generate_machine_info() -> dict[str, str]:
    """What stands in the results that pytest-benchmark writes: no names of machines."""
    return machine()


def pytest_benchmark_generate_commit_info() -> dict[str, str]:
    return {"project": "afterlog"}


def note(line: str) -> None:
    """Add a line to the summary."""
    _lines.append(line)


def told(result: dict[str, Any]) -> dict[str, Any]:
    """Note a result for the summary."""
    ours, floor = result["ours"], result["floor"]
    _lines.append(
        f"{result['name']:38} cpu {ours['cpu_p50_ns']:>12,.0f} ns  floor {floor['cpu_p50_ns']:>12,.0f} ns"
        f"  ratio {result['cpu_ratio']:>7.2f}"
        f"   wall {ours['wall_p50_ns']:>12,.0f} ns  p99 {ours['wall_p99_ns']:>12,.0f} ns"
    )
    return result


@pytest.fixture
def measure(benchmark: Any) -> Measure:
    """measure(name, sizes, count, ours, floor, prepare, rounds): run `ours` and `floor` in turn, record the figures."""

    def run(
        name: str,
        sizes: dict[str, Any],
        count: int,
        ours: Callable[[], object],
        floor: Callable[[], object],
        prepare: Callable[[], object] = lambda: None,
        rounds: int = 7,
    ) -> dict[str, Any]:
        pair = Pair(count)

        def before() -> None:
            with pair.floor.measured():
                floor()
            prepare()

        def target() -> None:
            with pair.ours.measured():
                ours()

        benchmark.pedantic(target, setup=before, rounds=rounds)
        result = told(record(name, sizes | {"operations": count, "rounds": rounds}, pair.figures()))
        benchmark.extra_info.update(ours=result["ours"], floor=result["floor"], cpu_ratio=result["cpu_ratio"])
        return result

    return run
