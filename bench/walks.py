"""Walks: how far one operation goes through the source. Calls of functions, files, switches between files, depth.

    python -m bench.walks                                       the table
    python -m bench.walks --show send                           one walk, call by call
    PYTHONPATH=<another tree> python bench/walks.py             the same of another tree, with this script

What counts (`sys.setprofile`, in the thread that calls; nothing works in the background):

- *Calls* of Python functions of the package. Properties, lambdas, comprehensions (which have a frame of their own up to
  Python 3.11) and generator expressions are functions, too. A generator counts whenever it is entered, so one that goes
  over many things makes a long walk. Compiled kernels, numpy and the standard library do not count; what they call back
  does.
- *Files* of the package in which a function was called.
- *Switches*: calls in another file than the call before. Returning to the caller's file is no switch by itself.
- *Depth*: functions of the package below the one that was called first.

Over the socket, client and server are one process, and the server's threads count too; their depth is their own.

`tests/fenced/walks.json` has the calls of each, and a test that none grows. A walk is measured when the same call was
made a few times before: modules are imported, blocks merged, records read ahead. The clock only moves when it is
turned, so that the same tree gives the same numbers again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import afterlog
from afterlog.client.served_store import ServedStore
from afterlog.server.running import Serving
from afterlog.store.store import Store, open_store

PACKAGE = Path(afterlog.__file__).parent
START_MS = 1_700_000_000_000
WARM = 5
"""Calls before the one that is measured."""
MANY = 1_000
COLUMNS = 500

Step = tuple[int, str, str]
"""Depth, file, function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one call cost a reader of the source."""

    calls: int
    files: int
    switches: int
    depth: int


class Recorder:
    """What functions of the package are entered in threads that have it as their profiler, in order, while it is on."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self._root = f"{package}/"
        self._depth = threading.local()
        self._found: list[Step] | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        found, code = self._found, frame.f_code
        if found is None or event not in ("call", "return") or not code.co_filename.startswith(self._root):
            return
        depth = getattr(self._depth, "of_this_thread", -1)
        if event == "call":
            depth += 1
            found.append((depth, code.co_filename.removeprefix(self._root), code.co_qualname))
        else:
            depth = max(-1, depth - 1)
        self._depth.of_this_thread = depth

    def steps(self, call: Callable[[], object]) -> list[Step]:
        """Those of this thread while `call` runs, and of others that were begun under this profiler."""
        found: list[Step] = []
        gc.disable()  # it would run what is no part of the walk
        self._depth.of_this_thread = -1
        self._found = found
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
            self._found = None
            gc.enable()
        return found


def steps(call: Callable[[], object], package: Path = PACKAGE) -> list[Step]:
    """The functions of the package that are entered while `call` runs, in order."""
    return Recorder(package).steps(call)


def walk(found: list[Step]) -> Walk:
    files = [file for _, file, _ in found]
    return Walk(
        calls=len(found),
        files=len(set(files)),
        switches=sum(file != next_file for file, next_file in itertools.pairwise(files)),
        depth=max((depth for depth, _, _ in found), default=0),
    )


def walks(folder: Path) -> Iterator[tuple[str, list[Step]]]:
    """Each operation by name, and the steps that it takes, in new stores below `folder`."""
    clock = afterlog.ManualClock(START_MS)
    with _looked_at_once(), _opened(folder / "store", clock) as store:
        yield from _sending(store)
        yield from _polling(store, clock)
        yield from _receiving(store, clock)
        yield "roll", _roll(store)
    yield "clean open", _open(folder / "opened", clock)
    yield "offload of one segment", _offload(folder, clock)


def served_walks(folder: Path) -> Iterator[tuple[str, list[Step]]]:
    """Over the socket, of one connection: what the client enters, and what the server does in its threads."""
    recorder = Recorder()
    clock = afterlog.ManualClock(START_MS)
    threading.setprofile(recorder)  # of the threads that the server starts
    try:
        with _looked_at_once(), _opened(folder / "served", clock) as store:
            serving = Serving(store)
            serving.start()
            try:
                with afterlog.connect(serving.addresses[0]) as connected:
                    yield from _served(connected, recorder)
            finally:
                serving.stop()
                serving.join()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # as its documentation has it


def _served(store: ServedStore, recorder: Recorder) -> Iterator[tuple[str, list[Step]]]:
    store.create_topic("mail")
    yield "served send", _warm(lambda: store.send("mail", b"value", key=b"key"), of=recorder.steps)
    store.send_many("mail", [b"value"] * 3 * WARM)
    with store.subscribe("mail", "sender") as subscription:
        received: list[afterlog.LeasedMessage] = []

        def receive() -> None:
            received[:] = subscription.receive(1)

        def ack() -> None:
            subscription.ack(received[0])

        receive()
        yield "served receive of 1", _warm(receive, before=ack, of=recorder.steps)
        ack()
        yield "served ack", _warm(ack, before=receive, of=recorder.steps)


@contextlib.contextmanager
def _looked_at_once() -> Iterator[None]:
    """The room on the disk, which is looked at every now and then: so that a walk is the same again."""
    try:
        from afterlog.store import room
    except ImportError:  # of another tree
        yield
        return
    before, room.LOOK_S = room.LOOK_S, math.inf
    try:
        yield
    finally:
        room.LOOK_S = before


def _opened(folder: Path, clock: afterlog.Clock, remote: str | None = None) -> Store:
    return open_store(folder, None, clock, None, remote, background=False)


def _warm(
    call: Callable[[], object],
    before: Callable[[], object] = lambda: None,
    of: Callable[[Callable[[], object]], list[Step]] = steps,
) -> list[Step]:
    """The last of some calls; `before` runs before each, and does not count."""
    for _ in range(WARM):
        before()
        call()
    before()
    return of(call)


def _send(store: Store, topic: str, count: int = 1, delay: int = 0) -> None:
    for _ in range(count):
        store.send(topic, b"value", key=b"key", delay=delay)


def _sending(store: Store) -> Iterator[tuple[str, list[Step]]]:
    for topic in ("send", "send_many", "producer"):
        store.create_topic(topic)
    yield "send", _warm(lambda: _send(store, "send", delay=60))
    values, delays = [b"value"] * MANY, np.arange(MANY)
    yield f"send_many of {MANY:,}", _warm(lambda: store.send_many("send_many", values, delay=delays))
    with store.producer("producer") as producer:

        def buffer() -> None:
            producer.send(b"value", key=b"key", delay=60)

        def buffer_two() -> None:
            buffer()
            producer.send(b"value", key=b"key", delay=61)

        yield "Producer: send", _warm(buffer)
        yield "Producer: flush", _warm(producer.flush, before=buffer_two)


def _polling(store: Store, clock: afterlog.ManualClock) -> Iterator[tuple[str, list[Step]]]:
    store.create_topic("poll")
    count = 2 * WARM * COLUMNS
    store.send_many("poll", [b"value"] * count, delay=np.arange(count))
    clock.advance(count * 1_000)
    with store.consumer("poll", group="group") as consumer:
        yield "poll of 1", _warm(lambda: consumer.poll(1))
        yield f"poll_columns of {COLUMNS}", _warm(lambda: consumer.poll_columns(COLUMNS))


def _receiving(store: Store, clock: afterlog.ManualClock) -> Iterator[tuple[str, list[Step]]]:
    store.create_topic("receive")
    count = WARM + 1
    _send(store, "receive", 3 * count)
    with store.subscribe("receive", "subscription", random=np.random.default_rng(1)) as subscription:
        received: list[afterlog.Received] = []

        def receive() -> None:
            received[:] = [subscription.receive(1)]

        def ack() -> None:
            for each in received:
                subscription.ack(each[0])

        def nack() -> None:
            subscription.nack(received[0][0])

        yield "receive of 1", _warm(receive, before=ack)
        ack()
        yield "ack", _warm(ack, before=receive)
        yield "nack", _warm(nack, before=receive)
        received.clear()
        _send(store, "receive", count, delay=60)
        clock.advance(120_000)  # now what was nacked is due again, and then what nobody has received
        yield "receive of 1, with a retry", _warm(receive, before=ack)
        assert 1 == received[0][0].redelivery_count


def _roll(store: Store) -> list[Step]:
    log = store.create_topic("roll").partition(0).log
    return _warm(log.roll, before=lambda: _send(store, "roll", 10, delay=60))


def _open(folder: Path, clock: afterlog.Clock) -> list[Step]:
    """A store of one topic with two segments, of which one is sealed; it was closed."""
    with _opened(folder, clock) as store:
        log = store.create_topic("open").partition(0).log
        _send(store, "open", 10, delay=60)
        log.roll()
        _send(store, "open", 10, delay=60)
    stores: list[Store] = []

    def close() -> None:
        for store in stores:
            store.close()

    try:
        return _warm(lambda: stores.append(_opened(folder, clock)), before=close)
    finally:
        close()


def _offload(folder: Path, clock: afterlog.ManualClock) -> list[Step]:
    """The first segment of a topic goes up, and its local files go: each time of a new store, into a new bucket."""
    stores: list[Store] = []

    def close() -> None:
        for store in stores:
            store.close()

    def sealed() -> None:
        close()
        bucket = folder / f"bucket-{len(stores)}"
        bucket.mkdir()
        store = _opened(folder / f"tiered-{len(stores)}", clock, str(bucket))
        stores.append(store)
        topic = store.create_topic("offload", remote_storage_enable=True, local_retention_ms=0)
        _send(store, "offload", 10)
        topic.partition(0).log.roll()
        clock.advance(1)

    def offload() -> None:
        [done] = stores[-1].offload().values()
        assert (1, 1) == (done.uploaded, done.freed)

    try:
        return _warm(offload, before=sealed)
    finally:
        close()


def table(found: dict[str, Walk]) -> str:
    """In Markdown, as those in docs/."""
    rows = ["| walk | calls | files | switches | depth |", "|---|--:|--:|--:|--:|"]
    for name, each in found.items():
        rows.append(f"| {name} | {each.calls:,} | {each.files} | {each.switches} | {each.depth} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="WALK", help="print each call of one walk")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = dict([*walks(Path(folder)), *served_walks(Path(folder))])
    for depth, file, function in found[asked.show] if asked.show else ():
        print(f"{'  ' * depth}{function}  ({file})")
    measured = {name: walk(each) for name, each in found.items()}
    print(table(measured))
    return {"walks": {name: asdict(each) for name, each in measured.items()}}


if __name__ == "__main__":
    main()
