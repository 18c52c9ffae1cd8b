"""An input and its carry partition, each with a worker of its own, in every order of what can happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from afterlog.relay import carrying
from afterlog.relay.carrying import CANCEL, CarriedRecord, carried_by, read_carried
from afterlog.relay.instruction import Cancellation, Instruction, KafkaRecord, Refusal, ScheduledDelivery
from afterlog.relay.rectangle import Rectangle
from afterlog.relay.relay_partition import DeliveryTurn, RelayPartition
from tests.relay.simulation import PendingList, _copied, scheduled

END_MS = 3
INPUT, CARRY = range(2)


@dataclass
class CarryWorld:
    """Time, two logs, what is committed of each, and a worker for each."""

    history: Sequence[Instruction]
    now_ms: int = 0
    sent: int = 0
    carry_log: list[Instruction] = field(default_factory=list)
    committed: list[Rectangle] = field(default_factory=lambda: [Rectangle.beginning(0)] * 2)
    delivered: list[bytes] = field(default_factory=list)
    """Values, which are the offsets in the input."""
    has_carried: bool = False
    carries: int = 0
    carries_max: int = 3
    failures: int = 0
    cancelled_ms: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = [self._begun(which) for which in (INPUT, CARRY)]

    def _begun(self, which: int) -> RelayPartition:
        return RelayPartition(self.committed[which], PendingList(), end=len(self.log(which)), carries=True)

    def log(self, which: int) -> Sequence[Instruction]:
        return self.history[: self.sent] if which == INPUT else self.carry_log

    def signature(self) -> object:
        workers = []
        for each in self.workers:
            gathered, pending = each._gathered, each.pending
            assert isinstance(pending, PendingList)
            workers.append(
                (each.next_offset, each._known_at, each._live_at, each._frontier, each._is_draining, tuple(each._held),
                 tuple(gathered.late), tuple(gathered.cancels), tuple(pending.records), pending.clock_ms)
            )  # fmt: skip
        return (
            self.now_ms, self.sent, tuple(self.carry_log), tuple(self.committed), tuple(sorted(self.delivered)),
            self.has_carried, self.carries, self.failures, tuple(workers),
        )  # fmt: skip

    def steps(self) -> Iterator[CarryWorld]:
        if self.sent < len(self.history):
            after = self._copy()
            after.sent += 1
            yield after
        if self.now_ms < END_MS:
            after = self._copy()
            after.now_ms += 1
            yield after
        for which in (INPUT, CARRY):
            worker = self.workers[which]
            if worker.next_offset < len(self.log(which)) and worker.state != "draining":
                after = self._copy()
                after.workers[which].take(self.log(which)[worker.next_offset])
                yield after
            if worker.state == "rebuilding":
                continue
            for carries in (False, True):
                if carries and (self.carries >= self.carries_max or worker.pending.lowest() is None):
                    continue
                after = self._copy()
                after.workers[which].committed(after._turned(which, carries))
                yield after
                if self.failures < 1:
                    lost = self._copy()
                    lost._turned(which, carries)
                    lost._dies(which)
                    yield lost

    def judge(self) -> None:
        assert max(Counter(self.delivered).values(), default=0) <= 1, f"twice: {self.delivered}"

    def judge_end(self) -> None:
        ids = [each.id for each in self.history if isinstance(each, ScheduledDelivery | Cancellation)]
        for row, each in enumerate(self.history):
            if isinstance(each, ScheduledDelivery):
                assert each.value in self.delivered or (each.id and each.id in ids[row + 1 :]), f"{each.offset} is lost"

    @property
    def is_over(self) -> bool:
        if self.sent < len(self.history) or self.now_ms < END_MS:
            return False
        return all(
            worker.next_offset == len(self.log(which)) == self.committed[which].next_offset
            and worker.state == "live" and not worker.has_gathered and not len(worker.pending)
            for which, worker in enumerate(self.workers)
        )  # fmt: skip

    def _turned(self, which: int, carries: bool) -> DeliveryTurn:
        worker = self.workers[which]
        turn = worker.turn(self.now_ms, 2, carry_before=1_000 if carries else 0, carry_most=1)
        self.delivered += [each.value or b"" for each in (*turn.late, *turn.due)]
        self.committed[which] = turn.rectangle
        for made in carried_by(turn, "later", is_carry=which == CARRY, has_carried=self.has_carried):
            record = KafkaRecord(len(self.carry_log), 0, made.key, made.value, made.headers)
            self.carry_log = [*self.carry_log, read_carried(record)]
        self.has_carried = self.has_carried or bool(turn.carried)
        self.carries += len(turn.carried)
        return turn

    def _dies(self, which: int) -> None:
        self.failures += 1
        self.workers[which] = self._begun(which)

    def _copy(self) -> CarryWorld:
        made = copy(self)
        made.delivered, made.committed = [*self.delivered], [*self.committed]
        made.workers = [*map(_copied, self.workers)]
        return made


def explore_carrying(
    history: Sequence[Instruction], judge: Callable[[CarryWorld], object] = lambda world: None, carries: int = 3
) -> int:
    left = [CarryWorld(history, carries_max=carries)]
    seen, ends = {left[0].signature()}, 0
    while left:
        world = left.pop()
        world.judge()
        if world.is_over:
            world.judge_end()
            judge(world)
            ends += 1
        for after in world.steps():
            name = after.signature()
            if name not in seen:
                seen.add(name)
                left.append(after)
    assert ends
    return len(seen)


HISTORIES = {
    "two": [scheduled(0, 2), scheduled(1, 3)],
    "cancel": [scheduled(0, 3, b"a"), Cancellation(1, b"a")],
    "replace": [scheduled(0, 3, b"a"), scheduled(1, 2, b"a")],
    "replace late": [scheduled(0, 3, b"a"), scheduled(1, 3, b"a")],
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.share(2)
def test_what_is_carried_goes_out_once(name: str) -> None:
    assert explore_carrying(HISTORIES[name]) > 100


def is_never_delivered(world: CarryWorld) -> None:
    """For a history whose cancel is read at once, while the record is far ahead."""
    assert world.delivered == [], world.delivered


def cancelled_in_time(history: Sequence[Instruction]) -> int:
    """All states in which the cancel has come everywhere before the record is due: time stands still until then. It is
    carried again once at most while the cancel is on its way: that is what `carry_after` has to be long enough for."""
    with patch.object(CarryWorld, "steps", _before_time_goes_by):
        return explore_carrying(history, is_never_delivered, carries=2)


_steps = CarryWorld.steps


def _before_time_goes_by(world: CarryWorld) -> Iterator[CarryWorld]:
    is_settled = world.sent == len(world.history) and all(
        worker.next_offset == len(world.log(which)) and not worker.has_gathered and worker.state == "live"
        for which, worker in enumerate(world.workers)
    )
    for after in _steps(world):
        if after.now_ms == world.now_ms or is_settled:
            yield after


def test_a_cancel_that_is_in_time_finds_what_was_carried() -> None:
    assert cancelled_in_time(HISTORIES["cancel"]) > 100


def _said_once(turn: DeliveryTurn, topic: str, *, is_carry: bool, has_carried: bool) -> Iterator[CarriedRecord]:
    for each in carrying.carried_by(turn, topic, is_carry=is_carry, has_carried=has_carried):
        if not (is_carry and each.headers[0][0] == CANCEL):
            yield each


def _whatever_is_newer(turn: DeliveryTurn, topic: str, *, is_carry: bool, has_carried: bool) -> Iterator[CarriedRecord]:
    """A cancel also means what came behind it."""
    cancels = [each._replace(origin=1_000) for each in turn.cancels]
    return carrying.carried_by(turn._replace(cancels=cancels), topic, is_carry=is_carry, has_carried=has_carried)


def _no_cancels(turn: DeliveryTurn, topic: str, *, is_carry: bool, has_carried: bool) -> Iterator[CarriedRecord]:
    return carrying.carried_by(turn, topic, is_carry=is_carry, has_carried=False)


@pytest.mark.parametrize(
    ("planted", "name"), [(_said_once, "cancel"), (_no_cancels, "cancel"), (_whatever_is_newer, "replace")]
)
def test_a_planted_bug_of_carrying_is_seen(planted: Callable[..., Iterator[CarriedRecord]], name: str) -> None:
    explore = cancelled_in_time if name == "cancel" else explore_carrying
    with patch(f"{__name__}.carried_by", planted), pytest.raises(AssertionError):
        explore(HISTORIES[name])


def test_what_is_not_ours_is_refused() -> None:
    for headers in ((), (("afterlog-carried-deliver-after", b"soon"),), (("deliver-after", b"1"),)):
        assert isinstance(read_carried(KafkaRecord(0, 0, None, b"", headers)), Refusal)


def test_what_goes_along() -> None:
    record = ScheduledDelivery(4, 1_000, "out", b"k", None, (("a", b"1"), ("a", None)), 77, b"order")
    turn = DeliveryTurn([], [], [], [record], [], Rectangle.beginning(5), is_full=False)
    [made] = carried_by(turn, "later", is_carry=False, has_carried=False)
    read = read_carried(KafkaRecord(9, 5_000, made.key, made.value, made.headers))
    assert isinstance(read, ScheduledDelivery)
    assert record._replace(offset=9, id=read.id, origin=4) == read
    assert len(read.id) == 32
    [again] = carried_by(turn._replace(carried=[read]), "relays.carry", is_carry=True, has_carried=True)
    assert read == read_carried(KafkaRecord(9, 6_000, again.key, again.value, again.headers))
