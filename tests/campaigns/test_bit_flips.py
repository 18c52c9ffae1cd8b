"""Bits rot, files shrink, vanish, change places and come back from old copies: detected or harmless, never wrong.

Detected: a typed error that names a file. Harmless: everything that can be observed is as before. A position is the one
thing of which an old copy is as good as the new one: what was processed since is delivered again (D4).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afterlog import ALWAYS, CorruptFile, ManualClock, Store
from afterlog.base.names import CANCEL_INDEX, LOG
from afterlog.fetch import verified
from afterlog.records import kernels, pure
from afterlog.store.store import open_store
from tests import campaigns
from tests.campaigns.crashes import FAR_MS, PATH, START_MS, small
from tests.campaigns.life import Life, life_of
from tests.campaigns.simulated_disk import Image, SimulatedFiles

CONFIG = small(min_index_count_per_bucket=2, batch_bytes=64)
EDGES = np.array([0, START_MS, START_MS + 3, START_MS + 20, 2 * START_MS], np.int64)
LATER_MS = START_MS + 5
Damage = Callable[[str, bytes], Iterator[tuple[str, bytes | None]]]
"""Of a path and what is in the file: what is done to it, and what it holds then; None: it is gone."""


pytestmark = pytest.mark.usefixtures("quiet")


def images(topics: Mapping[str, bool]) -> list[Image]:
    """What a disk held after each step in the life of a store, the last after a clean close: another one each run."""
    disk, clock, taken = SimulatedFiles(), ManualClock(START_MS), []
    chance = random.Random(campaigns.SEED)
    store = open_store(PATH, CONFIG, clock, disk, background=False)
    for number, (name, delayed) in enumerate(topics.items()):
        topic = store.create_topic(name, delayed=delayed)
        for step in range(3):
            values = [chance.randbytes(chance.randrange(1, 6)) for _ in range(2 + number)]
            after = [START_MS + 2 * row + chance.randrange(2) for row in range(len(values))]
            store.send_many(name, values, deliver_after=after if delayed else None)
            store.send(name, b"k", key=b"key", headers=[("h", b"v")])
            taken.append(disk.image())
            clock.set(LATER_MS)
            for group in ("g", "h") if number else ("g",):
                with store.consumer(name, group=group) as consumer:
                    consumer.poll(1 + number)
            taken.append(disk.image())
            if step < 2:
                topic.partition(0).log.roll()
            clock.set(START_MS)
    store.close()
    return [*taken, disk.image()]


def observe(store: Store, clock: ManualClock) -> object:
    """All that can be asked of a store, and all that it delivers in the end."""
    seen: list[object] = []
    for topic in store.topics():
        partition = topic.partition(0)
        seen.append((topic.name, topic.settings, partition.log_start, partition.log_start_offset))
        seen.append((partition.high_watermark(), partition.pending(), partition.log_end_offset, partition.next_due()))
        seen.append(partition.due_histogram(EDGES).tolist())
    clock.advance(FAR_MS)
    for topic in store.topics():
        for group in ("g", "h"):
            with store.consumer(topic.name, group=group, auto_commit=False) as consumer:
                seen.append(consumer.committed())
        with store.consumer(topic.name, group="new", auto_commit=False) as consumer:
            seen += [message for messages in iter(consumer.poll, []) for message in messages]
    return seen


def verdict(image: Image, contents: Mapping[str, bytes], allowed: list[object]) -> str:
    """`detected` or `harmless`; anything else raises."""
    try:
        seen = observed(Image(image.folders, contents))
    except CorruptFile as error:
        return "detected" if PATH in error.path.parents else f"another file is blamed: {error}"
    assert seen in allowed, "other content, and nobody noticed"
    return "harmless"


def observed(image: Image) -> object:
    clock = ManualClock(LATER_MS + 9 * (LATER_MS - START_MS))  # the store's clock went on where ours was set back
    return observe(open_store(PATH, CONFIG, clock, SimulatedFiles(image), background=False), clock)


def sweep(image: Image, damage: Damage) -> dict[str, int]:
    """Every damage to every file, one at a time; the number of verdicts of each kind."""
    expected, counts = observed(image), {"detected": 0, "harmless": 0}
    for path, data in image.contents.items():
        for name, damaged in damage(path, data):
            contents = {other: kept for other, kept in image.contents.items() if other != path}
            if damaged is not None:
                contents[path] = damaged
            allowed = [expected]
            if path.endswith("/position"):
                allowed.append(without_position(expected))
            try:
                counts[verdict(image, contents, allowed if damaged is None else [expected])] += 1
            except Exception as error:
                raise AssertionError(f"{path}, {name}") from error
    print(f"{sum(counts.values())} damages: {counts}")
    campaigns.count("damages to files", sum(counts.values()))
    return counts


def without_position(seen: object) -> object:
    assert isinstance(seen, list)
    return [{0: None} if isinstance(each, dict) else each for each in seen]


def bits(path: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    for number in range(8 * len(data)):
        position, bit = divmod(number, 8)
        yield (
            f"bit {bit} of byte {position}",
            data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :],
        )


def lengths(path: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    return ((f"cut at {size}", data[:size]) for size in range(len(data)))


def some(damage: Damage, of: int, part: int = 0, parts: int = 1) -> Damage:
    """A share of one part of what `damage` does: that of a run."""
    return lambda path, data: campaigns.share(islice(damage(path, data), part, None, parts), of)


KINDS = {"delayed": {"mail": True}, "fifo": {"mail": False}}
SHARE = {"delayed": 186, "fifo": 66}
PARTS = 4
"""Of a long test, so that no process is left with it alone at the end."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit(kind: str, part: int) -> None:
    image = images(KINDS[kind])[-1]
    counts = sweep(image, some(bits, SHARE[kind], part, PARTS))
    bit_count = sum(len(range(part, 8 * len(data), PARTS)) for data in image.contents.values())
    of = campaigns.THIRDS if campaigns.WHOLE else max(1, SHARE[kind] // campaigns.DEPTH)
    assert abs(sum(counts.values()) - bit_count / of) <= len(image.contents)
    assert min(counts.values()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_length(kind: str) -> None:
    sweep(images(KINDS[kind])[-1], some(lengths, 33))


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_missing(kind: str) -> None:
    counts = sweep(images(KINDS[kind])[-1], lambda path, data: iter([("deleted", None)]))
    assert counts["detected"] >= 5, "logs, checkpoints, topics"


def test_every_bit_of_a_store_with_everything() -> None:
    """Journals, buckets, dead letters, indexes of cancels, a segment with a copy in object storage: bit by bit."""
    life = life_of(ALWAYS).ready()
    life.store.close()
    image, counts = life.disk.image(), {"detected": 0, "harmless": 0}
    every = ((path, *damage) for path, data in image.contents.items() for damage in bits(path, data))
    for path, bit, damaged in campaigns.share(every, 3_000, whole=30):
        told = life.told.copy()
        if "/journal-" in path:  # what is behind a torn frame is given up, and said so
            told.perhaps |= told.acked
            told.acked.clear()
        disk = SimulatedFiles(Image(image.folders, {**image.contents, path: damaged}))
        again = Life(ALWAYS, disk, ManualClock(life.clock.now_ms()), life.storage.copy(), told)
        try:
            counts[lived(again)] += 1
        except Exception as error:
            raise AssertionError(f"{path}, {bit}") from error
    campaigns.count("damages to files", sum(counts.values()))
    assert min(counts.values()) > 0


def lived(life: Life) -> str:
    try:
        life.open()
        life.verify()
    except CorruptFile as error:
        return "detected" if PATH in error.path.parents else f"another file is blamed: {error}"
    return "harmless"


def cancelled_image() -> Image:
    """A store with control batches, in a sealed segment and in the active one."""
    disk, clock = SimulatedFiles(), ManualClock(START_MS)
    with open_store(PATH, CONFIG, clock, disk) as store:
        topic = store.create_topic("mail")
        records = [store.send("mail", b"%d" % delay, delay=delay) for delay in range(1, 6)]
        store.cancel(records[1])
        store.reschedule(records[2], delay=9)
        topic.partition(0).log.roll()
        store.cancel(records[3])
    return disk.image()


def of_cancels(path: str, data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Bits of the logs and of the cancel indexes, which also shrink and vanish."""
    if path.endswith(CANCEL_INDEX):
        yield from campaigns.share(bits(path, data), 46)
        yield from campaigns.share(lengths(path, data), 46)
        yield "deleted", None
    elif path.endswith(LOG):
        yield from campaigns.share(bits(path, data), 89)


def test_nothing_that_was_cancelled_comes_back() -> None:
    counts = sweep(cancelled_image(), of_cancels)
    assert min(counts.values()) > 0


TOPICS = {"late": True, "later": True, "plain": False}


def test_every_two_files_of_a_kind_swapped() -> None:
    image = images(TOPICS)[-1]
    expected, counts = [observed(image)], {"detected": 0, "harmless": 0}
    pairs = [
        (one, other)
        for one, other in combinations(image.contents, 2)
        if Path(one).suffix == Path(other).suffix and (Path(one).suffix or Path(one).name == Path(other).name)
    ]
    for one, other in campaigns.share(pairs, 4):
        swapped = {one: image.contents[other], other: image.contents[one]}
        try:
            counts[verdict(image, {**image.contents, **swapped}, expected)] += 1
        except Exception as error:
            raise AssertionError(f"{one} and {other} swapped") from error
    print(counts)
    assert min(counts.values()) > 0


def test_every_file_put_back_to_an_older_copy() -> None:
    *older, image = images(TOPICS)
    expected, counts = observed(image), {"detected": 0, "harmless": 0}
    for path, data in image.contents.items():
        for content in {copy.contents[path] for copy in older if path in copy.contents} - {data}:
            contents = {**image.contents, path: content}
            if path.endswith("/position"):
                continue
            try:
                counts[verdict(image, contents, [expected])] += 1
            except Exception as error:
                raise AssertionError(f"{path} put back") from error
    print(counts)
    assert min(counts.values()) > 0


def a_bit_of_the_key(path: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if b"key" in data:
        yield "a bit of the key", data.replace(b"key", b"kez")


class Blind:
    """The kernels, but for the CRC of the records on the way to a reader."""

    check_entries = staticmethod(pure.check_entries)
    read_records = staticmethod(pure.read_records)

    def __getattr__(self, name: str) -> Any:
        return getattr(kernels, name)


def test_unchecked_rot_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep can see: without that check other bytes come out, and it says so."""
    monkeypatch.setattr(pure, "read_entry", partial(pure.read_entry, check_body=False))
    monkeypatch.setattr(verified, "kernels", Blind())
    with pytest.raises(AssertionError, match="a bit of the key") as raised:
        sweep(images(KINDS["delayed"])[-1], a_bit_of_the_key)
    assert "nobody noticed" in str(raised.value.__cause__)
