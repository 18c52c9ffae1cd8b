"""What an open store does to its topics and their readers as a whole: alter, delete, purge, reset.

Whoever reads is in the way of all but `alter` and `reset_subscription`: TopicBusy, GroupBusy, or, with force, closed
first. Deletions are as `afterlog.store.deletions` has them: they have happened, or not, whatever crashes.

The locks, in this order: that of backups, the store's, those of schedules and adoptions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterlog.base.errors import (
    AfterlogError,
    GroupBusy,
    PartitionPoisoned,
    StoreClosed,
    TopicBusy,
    UnknownGroup,
    UnknownSubscription,
)
from afterlog.base.files import Files
from afterlog.base.locks import within
from afterlog.base.names import (
    REDRIVE,
    SUBSCRIPTIONS,
    check_name,
    partition_folder,
    position_files,
    subscription_folder,
)
from afterlog.fetch.consumer import Consumer
from afterlog.fetch.group import GroupPosition
from afterlog.fetch.positions import AtBrokerTime, AtTime, Edge, Position
from afterlog.log.topic_settings import altered, checked
from afterlog.produce.topic import Topic
from afterlog.store.topics import OpenTopics
from afterlog.subscription.journal import numbers
from afterlog.subscription.open_subscriptions import OpenSubscriptions
from afterlog.subscription.replay import replay
from afterlog.subscription.state import Owner, SubscriptionState
from afterlog.subscription.stats import Standings, subscription_names

if TYPE_CHECKING:
    from afterlog.produce.adoption import Adoptions
    from afterlog.store.cleanup import Cleanup
    from afterlog.store.schedules import Schedules
    from afterlog.subscription.leased_record import LeasedRecord
    from afterlog.subscription.subscription import Subscription


logger = logging.getLogger("afterlog.store.store")


@dataclass(frozen=True, kw_only=True)
class Administration:
    """Of one open store. Thread-safe."""

    files: Files
    topics: OpenTopics
    topic_of: Callable[[str], Topic]
    """Raises where the store is not usable, and UnknownTopic."""
    consumers: Mapping[tuple[str, int, str], Consumer]
    """Open consumers by topic, partition and group."""
    subscriptions: OpenSubscriptions
    subscribe: Callable[..., Subscription]
    backing_up: AbstractContextManager[Any]
    lock: AbstractContextManager[Any]
    schedules: Callable[[], Schedules]
    adoptions: Callable[[], Adoptions]
    cleanup: Callable[[], Cleanup]

    # Topics.

    def alter(self, name: str, partitions: int | None, options: Mapping[str, Any]) -> Topic:
        """Other settings, and partitions more, from now on."""
        with self.lock:
            topic = self.topic_of(name)
            settings = altered(topic.settings, options, partitions)
            if settings != topic.settings or settings.partitions != topic.partition_count:
                self.topics.alter(name, settings)
            return topic

    def delete(self, name: str, *, force: bool) -> None:
        """A topic, with all that is of it: records, readers, schedules, what jobs handed over."""
        with self.backing_up, self.lock:
            topic = self.topic_of(name)
            self._let_go(name, None, force)
            schedules, adoptions = self.schedules(), self.adoptions()
            with schedules.lock, adoptions.lock:
                if adoptions.has_begun(name):
                    raise PartitionPoisoned(
                        "an adoption that was begun is not done; close and reopen the store", path=self.topics.path
                    )
                try:
                    self.topics.delete(topic.name)
                    self.subscriptions.forget(topic.name)
                finally:
                    schedules.read_anew()

    def purge(self, name: str, upto: Position, *, pending: bool, partition: int | None, force: bool) -> int:
        """Records, due ones before a position, and with `pending` all that is not due; how many."""
        with self.lock:
            topic = self.topic_of(name)
            chosen = list(topic.partitions) if partition is None else [topic.partition(partition)]
            self._let_go(name, None, force)
            positions = [each.beginning(upto) for each in chosen]  # whether it can be, everywhere, before anything goes
            count = sum(each.cancel_pending() for each in chosen) if pending else 0
            again = pending and isinstance(upto, Edge | AtTime | AtBrokerTime)
            groups = self.groups(name)  # a look at every partition: once, for there may be thousands
            for each, position in zip(chosen, positions, strict=True):
                # What fell due before it came to be cancelled is due before such a position by now.
                count += each.purge(upto if again else position)
                for group in groups:
                    committed = GroupPosition(self.files, each.log.context.folder, group)
                    if committed.committed is not None and committed.committed < each.log_start:
                        committed.commit(each.log_start)
            return count

    def clean(self, name: str, partition: int | None) -> int:
        """What of the topic can be freed; how many bytes were."""
        topic = self.topic_of(name)
        chosen = range(topic.partition_count) if partition is None else [topic.checked_partition(partition)]
        return sum(self.cleanup().clean(topic, number).freed_bytes for number in chosen)

    def pause(self, topic: str, name: str | None, *, paused: bool) -> None:
        """Hand out nothing, of a topic or to one subscription, or go on; readers may be open."""
        with self.lock:
            if name is None:
                settings = self.topic_of(topic).settings
                if settings.paused is not paused:
                    self.topics.alter(topic, checked(replace(settings, paused=paused)))
                return
            self._check_known(topic, name, self.subscription_names, UnknownSubscription)
            opened = (each for each in self.subscriptions if (each.partition.topic, each.name) == (topic, name))
            with self.subscribe(topic, name, delay_ms=next((each.delay_ms for each in opened), 0)) as reader:
                for part in reader.parts():
                    part.pause(paused)

    # Readers.

    def subscription_names(self, topic: str) -> list[str]:
        """Of all subscriptions to a topic, whether a reader is open or not."""
        return self._names(topic, lambda folder, name: bool(numbers(self.files, subscription_folder(folder, name))))

    def replicated_names(self, topic: str) -> list[str]:
        """Of those that other clusters have, too, as their journals say."""

        return self._names_where(topic, lambda state: state.is_replicated is True)

    def groups(self, topic: str) -> list[str]:
        """All consumer groups that have committed a position in a topic."""
        return self._names(topic, lambda folder, name: any(map(self.files.exists, position_files(folder, name))))

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """With all that was acked, nacked and leased: what is made under its name later begins anew."""
        self._delete_reader(topic, name, force, self.subscription_names, UnknownSubscription)

    def expire_subscriptions(self, *, raising: bool) -> None:
        """Delete what nobody has read for as long as its topic says. Of dead letters that were sent back the record
        stays, and so does what other clusters have, where it may be read, and what is paused."""
        for topic in list(self.topics.by_name.values()):
            expires_ms = topic.settings.subscription_expiration_ms
            try:
                is_left = expires_ms is None or topic.settings.paused
                for name in [] if is_left else self.subscription_names(topic.name):
                    if name != REDRIVE and expires_ms is not None:
                        self._expire(topic.name, name, expires_ms)
            except (AfterlogError, OSError) as error:
                if self.topics.by_name.get(topic.name) is not topic:
                    continue  # it is being deleted
                if raising:
                    raise
                if not isinstance(error, StoreClosed):
                    logger.error("%s: its subscriptions were not looked at: %s", topic.name, error)

    def _expire(self, topic: str, name: str, expires_ms: int) -> None:
        def has_expired() -> bool:
            unread_ms = self.subscriptions.unread_ms(topic, name)
            return unread_ms >= expires_ms and name not in self._names_where(
                topic, lambda state: state.is_replicated is True or state.is_paused
            )

        if has_expired() and self._delete_reader(
            topic, name, False, self.subscription_names, UnknownSubscription, has_expired
        ):
            logger.info("%s: nobody has read the subscription %s for %d ms: deleted", topic, name, expires_ms)

    def delete_group(self, topic: str, name: str, *, force: bool) -> None:
        """With its positions."""
        self._delete_reader(topic, name, force, self.groups, UnknownGroup)

    def leased(self, topic: str, name: str, limit: int) -> list[LeasedRecord]:
        """What readers of a subscription have, over all partitions."""
        self._check_known(topic, name, self.subscription_names, UnknownSubscription)
        standings = Standings()
        standings.look(self.subscriptions)
        found = [
            record
            for partition in self.topic_of(topic).partitions
            if name in subscription_names(partition.log.context)
            for record in standings.leased(partition, name, limit)
        ]
        return sorted(found, key=lambda each: (each.deadline_ms, each.partition, each.delivery_offset))[:limit]

    def reset_subscription(self, topic: str, name: str, position: Position, *, delay_ms: int) -> None:
        """Let it go on at a position, for all its readers; they may be open."""
        with self.lock:
            self._check_known(topic, name, self.subscription_names, UnknownSubscription)
            with self.subscribe(topic, name, delay_ms=delay_ms) as reader:
                reader.seek(position)

    def reset_group(self, topic: str, name: str, position: Position) -> None:
        """Let it go on at a position."""
        with self.lock:
            self._check_known(topic, name, self.groups, UnknownGroup)
            self._let_go(topic, name, force=False)
            partitions = self.topic_of(topic).partitions
            targets = [each.beginning(position) for each in partitions]  # everywhere, before anything moves
            for each, target in zip(partitions, targets, strict=True):
                each.log.commit.make_delivered_durable()
                with each.log.letting_go, each.log.commit.poisoning():
                    GroupPosition(self.files, each.log.context.folder, name).commit(target)

    # Inside.

    def _delete_reader(
        self,
        topic: str,
        name: str,
        force: bool,
        known: Callable[[str], list[str]],
        unknown: type[UnknownGroup | UnknownSubscription],
        may: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Whether it may, and did. may: asked where nobody comes to read it any more."""
        with self.backing_up, self.lock:
            self._check_known(topic, name, known, unknown)
            if not may():
                return False
            self._let_go(topic, name, force)
            target = self.topic_of(topic)
            letting_go = [target.log(number).letting_go for number in range(target.partition_count)]
            # Else a pass of retention may read what goes.
            within(letting_go, lambda: self.topics.deletions.delete_reader(topic, name))
            self.subscriptions.forget(topic, name)
            return True

    def _check_known(
        self,
        topic: str,
        name: str,
        known: Callable[[str], list[str]],
        unknown: type[UnknownGroup | UnknownSubscription],
    ) -> None:
        self.topic_of(topic)
        check_name(name, "subscription")
        self.topics.deletions.settle(topic, name)
        if name not in known(topic):
            raise unknown(f"no {name!r} reads {topic}; there are {', '.join(known(topic)) or 'none'}")

    def _let_go(self, topic: str, name: str | None, force: bool) -> None:
        """Close who reads, or raise: of one subscription or group, or all of a topic."""
        consumers = {
            consumer
            for (each, _, group), consumer in list(self.consumers.items())
            if each == topic and name in (None, group) and consumer.is_reading
        }
        readers = self.subscriptions.readers(topic, name)
        if consumers and not force and name is not None:
            raise GroupBusy(f"group {name!r} of {topic} is read by an open consumer; close it, or call with force=True")
        if (consumers or readers) and not force:
            raise TopicBusy(
                f"{topic} has {len(consumers) + len(readers)} open readers; close them, or call with force=True"
            )
        for consumer in consumers:
            consumer.close()
        for reader in readers:
            reader.close()
            self.subscriptions.let_go(reader)  # handlers that are at work have nothing to ack any more

    def _names_where(self, topic: str, is_one: Callable[[SubscriptionState], bool]) -> list[str]:
        """Of subscriptions, open or not, of which that is so by a journal."""

        def said(folder: Path, name: str) -> bool:
            found = replay(self.files, subscription_folder(folder, name), Owner(folder.name, name), 1 << 62)
            return found is not None and is_one(found.state)

        return self._names(topic, said)

    def _names(self, topic: str, is_one: Callable[[Any, str], bool]) -> list[str]:
        self.topic_of(topic)
        found = set()
        for number in range(self.topic_of(topic).partition_count):
            folder = self.topics.path / partition_folder(topic, number)
            names = self.files.names(folder / SUBSCRIPTIONS) if self.files.exists(folder / SUBSCRIPTIONS) else ()
            found |= {name for name in names if is_one(folder, name)}
        return sorted(found)
