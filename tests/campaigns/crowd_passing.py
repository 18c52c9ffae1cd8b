"""Topics that come and go in `tests/campaigns/killed_crowd.py`: made, altered, purged and deleted, with unique keys in
them.

Each belongs to one thread of a life, so its lines come in order, and what is true of it after a kill is plain: what
was acknowledged is there, but for what a purge may have taken; of what was begun, all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import afterlog
from afterlog.index.key_rows import KeyRows
from afterlog.log import unique_key_scan
from afterlog.store.store import Store
from tests.campaigns.killed_crowd import PADDING, Hand

FAR_S = 100_000
"""What has a unique key stays pending, whatever becomes of its life."""
KEYS = (b"k0", b"k1", b"k2")
LIMITS_MS = (10**9, 10**10, None)


def passing_topic(who: str) -> str:
    return f"passing-{who.split()[-1]}"


class Changer(Hand):
    """Of one topic."""

    sent = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topic = passing_topic(self.name)

    def steps(self) -> dict[Callable[[], None], int]:
        return {self.put: 6, self.claim: 4, self.alter: 1, self.purge: 1, self.delete: 1}

    def work(self) -> None:
        if self.topic not in [topic.name for topic in self.store.topics()]:
            self.make()
        super().work()

    def value(self) -> str:
        self.sent += 1
        return f"{self.prefix}-{self.sent}"

    def make(self) -> None:
        self.say("change", "make")
        self.store.create_topic(self.topic)
        self.say("change", "made")

    def put(self) -> None:
        value = self.value()
        self.say("change", "put", value)
        self.store.send(self.topic, value.encode().ljust(PADDING))
        self.say("change", "done")

    def claim(self) -> None:
        key, value = self.chance.choice(KEYS), self.value()
        self.say("change", "claim", key.decode(), value)
        self.store.send(self.topic, value.encode(), delay=FAR_S, unique_key=key, on_conflict="replace")
        self.say("change", "done")

    def alter(self) -> None:
        limit_ms = self.chance.choice(LIMITS_MS)
        self.say("change", "alter", limit_ms)
        self.store.alter_topic(self.topic, max_delay_ms=limit_ms)
        self.say("change", "done")

    def purge(self) -> None:
        self.say("change", "purge")
        self.store.purge(self.topic)
        self.say("change", "done")

    def delete(self) -> None:
        self.say("change", "delete")
        self.store.delete_topic(self.topic)
        self.say("change", "done")
        self.make()


@dataclass
class PassingOracle:
    """What must be true of one."""

    name: str
    is_there: bool = False
    values: set[str] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)
    """Before a purge."""
    claimed: dict[str, str] = field(default_factory=dict)
    """Value by unique key."""
    limit_ms: int | None = None
    trying: tuple[Any, ...] = ()

    def hear(self, word: str, *said: Any) -> None:
        match word:
            case "made" | "done":
                self.happened()
            case _:
                assert not self.trying
                self.trying = (word, *said)
                if word == "purge":
                    self.may_go |= self.values

    def happened(self) -> None:
        word, *said = self.trying
        self.trying = ()
        match word:
            case "make":
                self.is_there = True
            case "put":
                self.values.add(said[0])
            case "claim":
                self.claimed[said[0]] = said[1]
            case "alter":
                self.limit_ms = said[0]
            case "delete":
                self.is_there, self.limit_ms = False, None
                self.values, self.may_go, self.claimed = set(), set(), {}

    def verify(self, store: Store) -> None:
        """In a copy of what a kill left. What was begun has happened from now on, or has not."""
        is_there = self.name in [topic.name for topic in store.topics()]
        word, *said = self.trying or ("",)
        if is_there != self.is_there:
            assert word in ("make", "delete"), f"{self.name}: there is {is_there}, which nobody asked for"
            self.happened()
        word, *said = self.trying or ("",)
        if is_there:
            limit_ms = store.topic(self.name).settings.max_delay_ms
            assert limit_ms == self.limit_ms or (word, *said) == ("alter", limit_ms), "an alteration is undone"
            self.limit_ms = limit_ms
            self.verify_values(store, {said[0]} if word == "put" else set())
            self.verify_claims(store, {said[0]: said[1]} if word == "claim" else {})
        self.trying = ()

    def verify_values(self, store: Store, perhaps: set[str]) -> None:
        with store.consumer(self.name, group="another", start=afterlog.EARLIEST, auto_commit=False) as consumer:
            messages = [message for messages in iter(consumer.poll, []) for message in messages]
        found = [(message.value or b"").decode().rstrip() for message in messages]
        assert len(found) == len({*found}), "a record is there twice"
        assert {*found} <= self.values | perhaps, "it is an earlier topic's, or nobody's"
        assert self.values - self.may_go <= {*found}, f"D3: {self.name} has lost {self.values - self.may_go - {*found}}"
        self.values = {*found}
        self.may_go &= self.values

    def verify_claims(self, store: Store, perhaps: dict[str, str]) -> None:
        pending = store.pending(self.name, limit=1_000)
        found = [((dict(each.headers)["unique-key"] or b"").decode(), (each.value or b"").decode()) for each in pending]
        assert len(found) == len(dict(found)), f"a unique key is held twice: {found}"
        for key, value in {**self.claimed, **dict(found)}.items():
            there = dict(found).get(key)
            assert there in (self.claimed.get(key), perhaps.get(key)), f"unique key {key}: {there}, not {value}"
        self.claimed = dict(found)


# A bug, planted in a worker.


def key_is_forgotten() -> None:
    patch.object(unique_key_scan, "rows_of_tail", lambda *_: KeyRows.empty()).start()
