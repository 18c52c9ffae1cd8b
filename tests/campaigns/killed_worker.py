"""The process that `tests/campaigns/test_kill.py` kills: it works on a store, and says what it tries and what came of
it.

    python -m tests.campaigns.killed_worker        a line `folder seed bug` comes in: a worker is forked, and waited for

Forked of a process that has imported everything, a life begins after milliseconds. Each line is a JSON list and one
write of at most PIPE_BUF bytes to a pipe, so it is there as a whole or not at all, and stays when the worker is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import afterlog
from afterlog.fetch.consumer import Consumer
from afterlog.produce.topic import Topic
from afterlog.store.store import Store
from afterlog.subscription import journal
from afterlog.subscription.dead_letters import DeadLetters
from afterlog.subscription.events import Acked, DeadLetter, Event, Reason, Returned
from afterlog.subscription.journaled_state import JournaledState
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.subscription.state import SubscriptionState
from afterlog.subscription.subscription import Subscription

CONFIG = afterlog.Config(
    segment_bytes=8_192,
    batch_bytes_max=4_096,
    min_index_count_per_bucket=16,
    max_num_buckets=2,
    frontier_lease_ms=20,
    cleaning_slack_bytes=0,
)
DURABILITIES = [afterlog.ALWAYS, afterlog.OS, afterlog.Durability.interval(2)]
ATTEMPTS = 3
RETRY = afterlog.RetryPolicy(first_ms=1, max_ms=20, attempts=ATTEMPTS)
LONG_MS, SHORT_MS = 600_000, 20
DELAYS = [0, 0, 0.001, 0.05, 60]
JOURNAL_BYTES = 1_024
LINE_BYTES = 4_096


def say(word: str, *arguments: object) -> None:
    line = json.dumps([word, *arguments]).encode() + b"\n"
    assert len(line) <= LINE_BYTES
    os.write(1, line)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Worker:
    """Two readers of one subscription, of which one has leases that soon end, and a consumer group."""

    store: Store
    steady: Subscription
    hasty: Subscription
    consumer: Consumer
    chance: random.Random
    name: str

    def __post_init__(self) -> None:
        self.sent = 0
        self.end = self.store.topic("mail").partition(0).log_end_offset
        self.held: dict[Subscription, list[LeasedMessage]] = {self.steady: [], self.hasty: []}

    def work(self) -> None:
        steps = [self.send, self.receive, self.ack, self.nack, self.release, self.cancel, self.reschedule, self.consume]
        while True:
            self.chance.choices(steps, [4, 6, 3, 4, 1, 2, 2, 1])[0]()

    def reader(self) -> Subscription:
        return self.chance.choice([self.steady, self.hasty])

    def send(self) -> None:
        values = [f"{self.name}-{self.sent + row}" for row in range(self.chance.choice([1, 1, 5]))]
        self.sent += len(values)
        say("send", values)
        delays = [self.chance.choice(DELAYS) for _ in values]
        offsets = self.store.send_many("mail", [value.encode() for value in values], delay=delays).tolist()
        self.end = offsets[-1] + 1
        say("sent", offsets)

    def receive(self) -> None:
        reader = self.reader()
        say("receive")
        received = reader.receive(self.chance.choice([1, 3, 10]))
        rows = [
            (each.delivery_offset, each.offset, (each.value or b"").decode(), each.redelivery_count, each.deadline_ms)
            for each in received
        ]
        say("received", wall_ms(), rows)
        self.held[reader] += received

    def taken(self, reader: Subscription) -> LeasedMessage | None:
        held = self.held[reader]
        return held.pop(self.chance.randrange(len(held))) if held else None

    def ack(self) -> None:
        if self.chance.random() < 0.3:
            messages, self.held[self.steady] = self.held[self.steady], []
            say("ack", [message.offset for message in messages])
            say("acked", self.steady.ack_many(messages).acked)
        elif (message := self.taken(reader := self.reader())) is not None:
            say("ack", [message.offset])
            say("acked", reader.ack(message).acked)

    def nack(self) -> None:
        if (message := self.taken(reader := self.reader())) is not None:
            delay_ms = self.chance.choice([0, 5, 40])
            say("nack", message.offset, message.redelivery_count, wall_ms() + delay_ms)
            answer = reader.nack(message, delay=delay_ms / 1_000, reason="planned")
            say("nacked", wall_ms(), answer.done)

    def release(self) -> None:
        if (message := self.taken(reader := self.reader())) is not None:
            say("release", message.offset, message.redelivery_count, 0)
            say("released", wall_ms(), reader.release(message).done)

    def target(self) -> int:
        """A recent record, which may be pending, or any."""
        return max(self.end - self.chance.choice([1, 2, 5, 20, 200]), 0)

    def cancel(self) -> None:
        offset = self.target()
        say("cancel", offset)
        answer = self.store.cancel(afterlog.RecordId("mail", 0, offset))
        say("cancelled", answer)

    def reschedule(self) -> None:
        offset = self.target()
        say("reschedule", offset)
        try:
            again = self.store.reschedule(afterlog.RecordId("mail", 0, offset), delay=self.chance.choice(DELAYS))
        except afterlog.NotPending:
            say("rescheduled", None)
        else:
            say("rescheduled", again.offset)

    def consume(self) -> None:
        messages = self.consumer.poll(20)
        rows = [(each.delivery_offset, each.offset, (each.value or b"").decode()) for each in messages]
        say("consumed", rows)
        if self.chance.random() < 0.5:
            position = self.consumer.positions()[0]
            say("commit", position)
            self.consumer.commit()
            say("committed", position)


def live(folder: Path, seed: str) -> None:
    chance = random.Random(seed)
    config = replace(CONFIG, durability=chance.choice(DURABILITIES))
    with patch.object(journal, "LIMIT_BYTES", JOURNAL_BYTES), afterlog.open(folder, config=config) as store:
        store.create_topic("mail")
        with (
            store.subscribe("mail", "sender", retry=RETRY, lease_ms=LONG_MS, dead_letter="dead") as steady,
            store.subscribe("mail", "sender", retry=RETRY, lease_ms=SHORT_MS, dead_letter="dead") as hasty,
            store.consumer("mail", group="group", auto_commit=False) as consumer,
        ):
            Worker(store, steady, hasty, consumer, chance, seed).work()


# Bugs, planted in a worker to see that they are caught.


def ack_stays_in_memory() -> None:
    real = JournaledState.record

    def record(self: JournaledState, event: Event) -> None:
        if isinstance(event, Acked):
            self.state.apply(event)
        else:
            real(self, event)

    patch.object(JournaledState, "record", record).start()


def crash_is_not_counted() -> None:
    real = SubscriptionState.apply

    def apply(self: SubscriptionState, event: Event) -> None:
        if isinstance(event, Returned) and event.reason == Reason.CRASHED:
            event = replace(event, reason=Reason.RELEASED)
        real(self, event)

    patch.object(SubscriptionState, "apply", apply).start()


def dead_letter_twice() -> None:
    real = DeadLetters._append

    def append(self: DeadLetters, topic: Topic, number: int, letters: Sequence[DeadLetter]) -> None:
        for _ in range(2):
            real(self, topic, number, letters)

    patch.object(DeadLetters, "_append", append).start()


def nothing_planted() -> None:
    """The worker as it is."""


BUGS = {bug.__name__: bug for bug in (nothing_planted, ack_stays_in_memory, crash_is_not_counted, dead_letter_twice)}


def serve(live: Callable[[Path, str], None], bugs: Mapping[str, Callable[[], None]]) -> None:
    """Fork a worker for each line that comes in, and say how it ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # where nobody listens any more, die without a word
    for line in sys.stdin:
        folder, seed, bug = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            code = 1
            try:
                say("pid", os.getpid())
                bugs[bug]()
                live(Path(folder), seed)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        say("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve(live, BUGS)
