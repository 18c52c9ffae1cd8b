"""Which dead letters somebody means: all of a topic, some by name, or those of a subscription or a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from afterlog.base.errors import InvalidRecord, WrongType
from afterlog.fetch.record_id import RecordId
from afterlog.subscription.dead_letter_headers import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLetters:
    """Letters that are all of what is given. records: by their own ids, in the topic of dead letters; subscription: the
    one that gave them up; reason: a part of it.
    """

    records: frozenset[RecordId] | None = None
    subscription: str | None = None
    reason: str | None = None

    @classmethod
    def of(
        cls,
        topic: str,
        records: Sequence[RecordId | str] | None = None,
        subscription: str | None = None,
        reason: str | None = None,
    ) -> ChosenLetters:
        """As a call was given them. Raises InvalidRecord of an id that is none, or of another topic, WrongType."""
        for name, text in (("subscription", subscription), ("reason", reason)):
            if text is not None and not isinstance(text, str):
                raise WrongType(f"{name} is text, not {text!r:.100}")
        if records is None:
            return cls(subscription=subscription, reason=reason)
        if isinstance(records, str | RecordId) or not isinstance(records, Sequence):
            raise WrongType(f"records are a list of ids, not {records!r:.100}")
        named = frozenset(map(RecordId.of, records))
        for each in named:
            if each.topic != topic:
                raise InvalidRecord(f"{each} is no record of {topic}, where the dead letters are")
        return cls(records=named, subscription=subscription, reason=reason)

    @property
    def is_all(self) -> bool:
        return self.records is None and self.subscription is None and self.reason is None

    def takes(self, record: RecordId, origin: Origin) -> bool:
        """Whether it is one of them."""
        return (
            (self.records is None or record in self.records)
            and (self.subscription is None or origin.subscription == self.subscription)
            and (self.reason is None or self.reason in origin.reason)
        )
