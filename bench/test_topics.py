"""Ten thousand topics of one partition: made, opened, read. Each in a new process, which dies without closing.

The floor of making them are their folders and files with two syncs each; that of opening them a look into each folder,
and at one small file there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.conftest import told
from bench.harness import Pair, Times, record
from bench.topics import look_at_folders, make_folders
from bench.workloads import in_new_process

COUNT = 10_000
ROUNDS = 5


@pytest.mark.parametrize(("how", "count"), [("together", COUNT), ("one_by_one", COUNT // 5)])
def test_make(benchmark: Any, tmp_path: Path, how: str, count: int) -> None:
    """Times are of one topic. One by one a fifth of them, since it costs the same however many there are."""
    floor, found = make_folders(tmp_path / "floor", count), list[dict[str, float]]()
    benchmark.pedantic(
        lambda: found.append(in_new_process(f"make_{how}", tmp_path / "store", count, module="bench.topics")), rounds=1
    )
    pair = Pair(count, Times([found[0]["cpu_s"]], [found[0]["wall_s"]]), floor)
    told(record(f"topics-made-{how.replace('_', '-')}", {"topics": count}, pair.figures()))


@pytest.mark.parametrize("durability", ["os", "always"])
def test_deliver(benchmark: Any, tmp_path: Path, durability: str) -> None:
    """A record falls due in each of a fifth of the topics. Times are of one; the floor has no durable frontier."""
    count, found = COUNT // 5, list[dict[str, float]]()
    benchmark.pedantic(
        lambda: found.append(in_new_process(f"deliver_{durability}", tmp_path / "s", count, module="bench.topics")),
        rounds=1,
    )
    [times] = found
    floor = Times([times["forgone_cpu_s"]], [times["forgone_wall_s"]])
    for name in ("first", "again", "renewed"):
        ours = Times([times[f"{name}_cpu_s"]], [times[f"{name}_wall_s"]])
        sizes = {"topics": count, "durability": durability}
        told(record(f"topics-delivered-{name}-{durability}", sizes, Pair(count, ours, floor).figures()))


def test_open(benchmark: Any, tmp_path: Path) -> None:
    """Times are of the whole store."""
    in_new_process("make_together", tmp_path / "store", COUNT, module="bench.topics")
    make_folders(tmp_path / "floor", COUNT)
    floor, found = Times(), list[dict[str, float]]()

    def look() -> None:
        times = look_at_folders(tmp_path / "floor")
        floor.cpu_s += times.cpu_s
        floor.wall_s += times.wall_s

    benchmark.pedantic(
        lambda: found.append(in_new_process("open_all", tmp_path / "store", module="bench.topics")),
        setup=look,
        rounds=ROUNDS,
    )
    times = Times([each["cpu_s"] for each in found], [each["wall_s"] for each in found])
    told(record(f"topics-opened-{COUNT}", {"topics": COUNT, **found[-1]}, Pair(1, times, floor).figures()))
