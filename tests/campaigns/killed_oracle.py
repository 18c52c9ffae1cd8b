"""What was said by processes that were killed, and whether it agrees with the promises, and with the log at the end.

    each send that was answered is in the log once, where the answer said; one that was not, at most once    D3 D8 D11
    nothing else is in the log                                                                               D12
    everything in the log is received by somebody, none before its time                                      D1 D2 D4
    a record is received again only where it was nacked, its reader was killed, or its answer cut off,       D5 D9
    before the ack was answered, or behind its lease
    how often it failed is never told higher than its leases have ended and nacks were made;                 D10
    a nack that was done brings it again: behind its delay, with a count one higher
    what was cancelled is received by nobody, what came too late for that by somebody
    what was rescheduled is in the log once, and received behind its new time

Of a question whose answer never came, since who asked was killed, both are true: that it was done, and that it was not.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.campaigns.killed_client import LEASE_MS

GRID_MS = LEASE_MS // 128 + 1
"""Leases end on a grid (subscription/timers.py)."""

Place = tuple[int, int]
"""(partition, offset)"""


class Lies(AssertionError):
    """A promise was broken."""


def hold(promise: bool, told: str) -> None:
    if not promise:
        raise Lies(told)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Got(NamedTuple):
    """One delivery, by wall clocks, which are one on one machine."""

    leased_ms: int
    """By who serves; as the deadline tells, which is rounded up, so it may be GRID_MS late."""
    now_ms: int
    """When it was there."""
    name: str
    redelivery_count: int
    place: Place


@dataclass
class Nack:
    name: str
    redelivery_count: int
    delay_ms: int
    asked_ms: int
    done_ms: int | None = None
    """When its answer was there, where it says that it was done."""


@dataclass
class Move:
    """A record that is rescheduled. place, answer: what was said of it; neither: nobody knows."""

    due_ms: int
    place: Place | None = None
    answer: str | None = None


@dataclass
class Said:
    """Everything that was said, by what it is about."""

    sending: dict[str, tuple[str, int]] = field(default_factory=dict)
    """value: (who, due_ms)"""
    sent: dict[str, Place] = field(default_factory=dict)
    got: dict[str, list[Got]] = field(default_factory=lambda: defaultdict(list))
    acking: set[tuple[str, int]] = field(default_factory=set)
    """(value, redelivery_count)"""
    acked: dict[str, int] = field(default_factory=dict)
    """value: wall_ms of the first answer"""
    nacks: dict[str, list[Nack]] = field(default_factory=lambda: defaultdict(list))
    cancels: dict[str, str | None] = field(default_factory=dict)
    """value: the name of a CancelResult, or None: it was asked for"""
    moves: dict[str, Move] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    sends_s: list[float] = field(default_factory=list)

    def add(self, line: list[Any]) -> None:
        word, at_s, *rest = line
        match word, rest:
            case "joined", [name, pid]:
                self.pids[name] = pid
            case "sending", [name, values, due_ms]:
                self.sending |= dict.fromkeys(values, (name, due_ms))
            case "sent", [_, values, partition, offsets]:
                self.sends_s.append(at_s)
                self.sent |= {value: (partition, offset) for value, offset in zip(values, offsets, strict=True)}
            case "got", [name, value, count, leased_ms, now_ms, partition, offset]:
                self.got[value].append(Got(leased_ms, now_ms, name, count, (partition, offset)))
            case "acking", [_, values, counts]:
                self.acking.update(zip(values, counts, strict=True))
            case "acked", [_, value, now_ms]:
                self.acked.setdefault(value, now_ms)
            case "nacking", [name, value, count, delay_ms, now_ms]:
                self.nacks[value].append(Nack(name, count, delay_ms, now_ms))
            case "nacked", [name, value, now_ms]:
                [*_, mine] = (nack for nack in self.nacks[value] if nack.name == name)
                mine.done_ms = now_ms
            case "cancelling", [_, value]:
                self.cancels[value] = None
            case "cancelled", [_, value, answer]:
                self.cancels[value] = answer
            case "moving", [_, value, due_ms]:
                self.moves[value] = Move(due_ms)
            case "moved", [_, value, partition, offset]:
                self.moves[value].place = partition, offset
            case "unmoved", [_, value, answer]:
                self.moves[value].answer = answer
            case "failed", [name, error]:
                self.failed.append(f"{name}: {error}")
            case _:
                raise AssertionError(f"what is {line}?")

    def due_ms(self, value: str, place: Place) -> int:
        """When it is due where it lies."""
        move = self.moves.get(value)
        return self.sending[value][1] if move is None or place == self.sent[value] else move.due_ms


class Oracle:
    """kills: so many at most."""

    def __init__(self, said: Said, killed_ms: Mapping[str, int], kills: int) -> None:
        self._said = said
        self._killed_ms = killed_ms
        self._kills = kills

    def look(self) -> Counter[str]:
        """So far, whoever is still at work; how often records came again, and why. Raises Lies."""
        said, repeats = self._said, Counter[str]()
        hold(not said.failed, said.failed[0] if said.failed else "")
        self._look_at_places()
        for value, times in said.got.items():
            hold(value in said.sending, f"{value} was received, and nobody sent it")
            times.sort()
            self._look_at_times(value, times)
            for before, again in pairwise(times):
                repeats[self._why(value, before, again)] += 1
            for nack in said.nacks.get(value, ()):
                if nack.done_ms is not None:
                    self._look_behind(value, nack, nack.done_ms, times)
        return repeats

    def look_at_the_end(self, log: Mapping[str, list[Place]], again: Iterable[tuple[str, Place]]) -> Counter[str]:
        """log: where each value is of what was delivered, to the last one. again: as the proxy was answered."""
        said, repeats = self._said, self.look()
        for value, where in log.items():
            hold(value in said.sending, f"{value} is in the log, and nobody sent it")
            hold(len(where) == 1, f"{value} was sent once, and is in the log {len(where)} times: {where}")
            hold(value in said.got, f"{value} is in the log, and nobody received it")
            hold({got.place for got in said.got[value]} == {*where}, f"{value} is at {where}: {said.got[value]}")
        for value, place in [*said.sent.items(), *again]:
            hold(said.sent.get(value, place) == place, f"{value} was answered {said.sent.get(value)}, and then {place}")
            self._look_for(value, place, log.get(value))
        for value, nacks in said.nacks.items():
            for nack in nacks:
                if nack.done_ms is not None:
                    came = any(got.redelivery_count > nack.redelivery_count for got in said.got[value])
                    acked = any((value, count) in said.acking for count in range(nack.redelivery_count + 1))
                    hold(came or acked, f"{value} was nacked, and never came again: {nack}")
        return repeats

    def _look_at_places(self) -> None:
        """Each has its own, and is received from there alone."""
        said = self._said
        places = Counter(said.sent.values())
        places.update(move.place for move in said.moves.values() if move.place is not None)
        for place, count in places.most_common(1):
            hold(count == 1, f"{count} records were answered {place}")
        for value, times in said.got.items():
            found = {got.place for got in times}
            hold(len(found) == 1, f"{value} was sent once, and received from {found}")
            hold(said.cancels.get(value) not in _CANCELLED, f"{value} was cancelled, and received: {times}")
            told, move = said.sent.get(value), said.moves.get(value)
            if move is not None:
                told = move.place or (told if move.answer else None)
            hold(told is None or found == {told}, f"{value} was answered {told}, and received from {found}")

    def _look_at_times(self, value: str, times: list[Got]) -> None:
        due_ms, nacks = self._said.due_ms(value, times[0].place), len(self._said.nacks.get(value, ()))
        hold(all(each.now_ms >= due_ms for each in times), f"{value} was received before its time, {due_ms}: {times}")
        first, last = times[0], times[-1]
        ended = (last.leased_ms - max(due_ms, first.leased_ms - LEASE_MS * self._kills)) // LEASE_MS + 1
        hold(
            last.redelivery_count <= ended + nacks,
            f"{value} failed {last.redelivery_count} times, in {ended} leases and {nacks} nacks",
        )

    def _look_behind(self, value: str, nack: Nack, done_ms: int, times: list[Got]) -> None:
        later = [
            got for got in times if got.redelivery_count > nack.redelivery_count or got.leased_ms > done_ms + GRID_MS
        ]
        for got in later:
            hold(got.redelivery_count > nack.redelivery_count, f"{value} did not fail by {nack}: {got}")
        for got in later[:1]:
            count = got.redelivery_count - nack.redelivery_count
            hold(got.now_ms >= nack.asked_ms + nack.delay_ms, f"{value} came before its time, by {nack}: {got}")
            unseen = (got.leased_ms - nack.asked_ms) // LEASE_MS  # leases of which nobody could tell
            hold(count <= 1 + unseen, f"{value} failed {count} times by {nack}: {got}")

    def _look_for(self, value: str, place: Place, where: list[Place] | None) -> None:
        """Of what was answered."""
        said, move = self._said, self._said.moves.get(value)
        if value in said.cancels:
            answer = said.cancels[value]
            if answer in _CANCELLED:
                hold(where is None, f"{value} was cancelled, and is in the log: {where}")
                return
            hold(answer in (None, "ALREADY_DELIVERED"), f"{value} is there, and cannot be cancelled: {answer}")
            hold(where == [place] or (where is None and answer is None), f"{value}, not cancelled, is at {where}")
        elif move is None:
            hold(where == [place], f"{value} was answered {place}, and is at {where}")
        elif move.place is not None:
            hold(where == [move.place], f"{value} was rescheduled to {move.place}, and is at {where}")
        elif move.answer is not None:
            hold(move.answer == "ALREADY_DELIVERED", f"{value} is there, and cannot be rescheduled: {move.answer}")
            hold(where == [place], f"{value} was answered {place}, was due, and is at {where}")
        else:
            hold(where is not None, f"{value} was to be rescheduled, and is gone")

    def _why(self, value: str, before: Got, again: Got) -> str:
        said = self._said
        acked_ms = said.acked.get(value)
        before_ms = again.leased_ms - GRID_MS
        hold(acked_ms is None or acked_ms >= before_ms, f"{value} was acked at {acked_ms}, and then {before}, {again}")
        if again.leased_ms - before.leased_ms >= LEASE_MS:
            return "its lease had ended"
        for nack in said.nacks.get(value, ()):
            mine = (nack.name, nack.redelivery_count) == (before.name, before.redelivery_count)
            if mine and nack.asked_ms <= again.now_ms:
                return "it was nacked"
        if self._killed_ms.get(before.name, again.leased_ms) < again.leased_ms:
            return "its reader was killed"
        after_ms = again.leased_ms - before.leased_ms
        raise Lies(f"{value} was {before.name}'s for {LEASE_MS} ms, and {again.name} had it {after_ms} ms later")


_CANCELLED = ("CANCELLED", "ALREADY_CANCELLED")
"""The latter, where the answer to the first try was lost: nobody else cancels."""
