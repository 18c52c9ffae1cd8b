"""The settings of a topic: what is fixed of it when it is made or altered, checked, and as documents have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from afterlog.base.arguments import flag
from afterlog.base.errors import CorruptFile, InvalidTopic, WrongType
from afterlog.base.names import check_name, is_attempt

_LOCAL_RETENTION = ("local_retention_ms", "local_retention_bytes")
_BACKLOG = ("retention_by_subscriptions", "backlog_quota_bytes", "backlog_quota_ms", "backlog_quota_policy")
_WHERE_SET = (
    "remote_storage_enable", *_LOCAL_RETENTION, "check_instants", "foreign", "interceptors", "segment_ms", *_BACKLOG,
    "max_pending", "max_bytes", "expires_after_ms", "on_expiry", "priorities", "subscription_expiration_ms", "paused",
    "topic_id",
)  # fmt: skip
"""A document has these where they are not what they are by default: it may be older than they are."""


OnExpiry = Literal["drop", "dead_letter"]
"""What becomes of a record that expired before a subscription handed it out; `dead_letter`: where its reader has dead
letters."""
BacklogQuotaPolicy = Literal["producer_exception", "consumer_backlog_eviction"]
"""Pulsar's: appends are refused, or what has waited longest goes. (Its `producer_request_hold` blocks producers.)"""
SHARES = 8
"""Retention takes whole segments: so many of them make up what may stay, about. Larger: less too much, more files."""
LEAST_SEGMENT_MS = 60_000
"""Retention by time seals no younger segments of its own accord."""
PRIORITIES_MAX = 16
"""Each has its own partitions."""
ACKED_SEGMENT_MS = 600_000
"""Nor retention by subscriptions: until a segment that is never idle is freed."""
REMOTE_SEGMENT_MS = 3_600_000
"""Where segments are uploaded: what is not there yet is lost with the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What is fixed of a topic when it is made, or altered."""

    partitions: int = 1
    delayed: bool = True
    max_delay_ms: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    remote_storage_enable: bool = False
    """Sealed segments are uploaded to the store's object storage."""
    local_retention_ms: int | None = None
    """Of segments that were uploaded: how long the local copy stays after the last record that became due."""
    local_retention_bytes: int | None = None
    check_instants: bool = True
    """Refuse what asks for an instant that is surely wrong (`afterlog.records.times`)."""
    foreign: bool = False
    """Its segments are a Kafka broker's, in object storage: the topic is only read (docs/decisions/0032)."""
    interceptors: tuple[str, ...] = ()
    """What adds to the metadata of its entries, by the names registered (`afterlog.log.interceptors`)."""
    segment_ms: int | None = None
    """A segment is sealed at this age. None: at the age that its retention needs, `segment_age_ms`."""
    retention_by_subscriptions: bool = False
    """What a subscription or a group has not acked stays, and what all have acked may go, at once or by the rest of
    the retention (docs/decisions/0047)."""
    backlog_quota_bytes: int | None = None
    """Of what is due and not acked, by the mean size of a record. Beyond it `backlog_quota_policy` says who loses."""
    backlog_quota_ms: int | None = None
    """The same by the age of the oldest: since when it has been due."""
    backlog_quota_policy: BacklogQuotaPolicy = "producer_exception"
    max_pending: int | None = None
    """Records of a partition that are not due yet: where there are as many, no more are taken (TopicFull)."""
    max_bytes: int | None = None
    """Bytes of a partition's logs on the local disk: where there are as many, no more are taken (TopicFull)."""
    expires_after_ms: int | None = None
    """A subscription hands out no record later than so long after it was due; of one that says less itself, that."""
    on_expiry: OnExpiry = "drop"
    priorities: int = 1
    """Of so many, from 0 on, a record has one, and goes to a partition of it (`records/partitioner.py`): the partitions
    are a multiple of it. What is due of a higher one goes first."""
    subscription_expiration_ms: int | None = None
    """A subscription that nobody has read for so long, while the store was open, is deleted."""
    paused: bool = field(default=False, compare=False)
    """Nothing of it is handed out, to subscriptions or to consumers; what is sent is taken. `store.pause` sets it: who
    makes a topic that is there, finds it as it is."""
    topic_id: str | None = field(default=None, compare=False)
    """Kafka's word (KIP-516): 32 hex digits by which a topic is known from an earlier one of its name. None: it was
    made before topics had one."""

    def check_unique_keys(self) -> None:
        """Raises InvalidTopic where the topic can have none."""
        if not self.delayed or self.remote_storage_enable:
            kind = "uploads its segments" if self.delayed else "was made with delayed=False: nothing is pending"
            raise InvalidTopic(f"the topic {kind}: it has no unique keys; send to another one")

    @property
    def is_replicable(self) -> bool:
        """Whether other clusters can have the topic: its log is its own, and has a name for them."""
        return self.topic_id is not None and not self.foreign

    @property
    def has_retention(self) -> bool:
        """Whether records ever go by themselves."""
        return self.retention_by_subscriptions or self.retention_ms is not None or self.retention_bytes is not None

    @property
    def is_cleaned_up(self) -> bool:
        """Whether a pass has to see to its partitions now and then (`afterlog.store.cleanup`)."""
        return not self.foreign and (self.has_retention or self.segment_age_ms is not None)

    @property
    def is_looked_after(self) -> bool:
        """Whether the thread of the passes has anything to do for it."""
        return self.is_cleaned_up or self.subscription_expiration_ms is not None

    @property
    def lets_go_at_once(self) -> bool:
        """Whether what all subscriptions have acked goes by nothing else."""
        return self.retention_by_subscriptions and self.retention_ms is None and self.retention_bytes is None

    @property
    def has_backlog_quota(self) -> bool:
        return self.backlog_quota_bytes is not None or self.backlog_quota_ms is not None

    @property
    def segment_age_ms(self) -> int | None:
        """The age at which a segment is sealed; None: at no age."""
        if self.segment_ms is not None:
            return self.segment_ms
        ages_ms = [REMOTE_SEGMENT_MS] if self.remote_storage_enable else []
        if self.retention_by_subscriptions:
            ages_ms.append(ACKED_SEGMENT_MS)
        if self.retention_ms is not None:
            ages_ms.append(max(self.retention_ms // SHARES, LEAST_SEGMENT_MS))
        return min(ages_ms, default=None)

    @property
    def segment_share_bytes(self) -> int | None:
        """The size at which a segment is sealed, where what may stay is bounded by bytes: a part of these."""
        bounds = [each for each in (self.retention_bytes, self.backlog_quota_bytes) if each is not None]
        return max(min(bounds) // SHARES, 1) if bounds else None


class TopicChanges(TypedDict, total=False):
    """The settings that a topic can be given, also later, as keyword arguments. `TopicSettings` says what they are."""

    max_delay_ms: int | None
    retention_ms: int | None
    retention_bytes: int | None
    remote_storage_enable: bool
    local_retention_ms: int | None
    local_retention_bytes: int | None
    check_instants: bool
    segment_ms: int | None
    retention_by_subscriptions: bool
    backlog_quota_bytes: int | None
    backlog_quota_ms: int | None
    backlog_quota_policy: BacklogQuotaPolicy
    max_pending: int | None
    max_bytes: int | None
    expires_after_ms: int | None
    on_expiry: OnExpiry
    priorities: int
    subscription_expiration_ms: int | None
    interceptors: Sequence[str]


LEAST = {"partitions": 1, "segment_ms": 1, "expires_after_ms": 1, "priorities": 1, "subscription_expiration_ms": 1}
"""Of the numbers; the others may be 0."""
_NEEDED = ("partitions", "priorities")
"""These are numbers; the others may be None."""
_DEFAULT = TopicSettings()
FOREIGN = TopicSettings(remote_storage_enable=True, foreign=True)
"""Of a Kafka broker's log in object storage; such topics differ by their partitions alone."""


def checked(settings: TopicSettings) -> TopicSettings:
    """`settings` themselves. Raises InvalidTopic where one cannot be, or two contradict each other."""
    for name in (
        "partitions", "max_delay_ms", "retention_ms", "retention_bytes", *_LOCAL_RETENTION, "segment_ms",
        "backlog_quota_bytes", "backlog_quota_ms", "max_pending", "max_bytes", "expires_after_ms", "priorities",
        "subscription_expiration_ms",
    ):  # fmt: skip
        value, least = getattr(settings, name), LEAST.get(name, 0)
        if value is None and name not in _NEEDED:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidTopic(f"{name} must be an integer of at least {least}, not {value!r}")
    if settings.priorities > PRIORITIES_MAX:
        raise InvalidTopic(f"there are up to {PRIORITIES_MAX} priorities, not {settings.priorities}")
    if settings.partitions % settings.priorities:
        raise InvalidTopic(f"{settings.partitions} partitions are no multiple of {settings.priorities} priorities")
    for name in ("check_instants", "foreign", "retention_by_subscriptions", "paused"):
        if not isinstance(getattr(settings, name), bool):
            raise InvalidTopic(f"{name} must be True or False, not {getattr(settings, name)!r}")
    if settings.foreign and replace(settings, partitions=1) != FOREIGN:
        raise InvalidTopic("a Kafka broker's log is only read, from object storage: it has no other settings")
    names = settings.interceptors
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise InvalidTopic(f"interceptors are a list of registered names, not {names!r:.100}")
    if len(set(names)) != len(names):
        raise InvalidTopic(f"each interceptor is named once, not as in {', '.join(names)}")
    if settings.max_delay_ms is not None and not settings.delayed:
        raise InvalidTopic("max_delay_ms is for delayed topics: leave it out, or make the topic with delayed=True")
    if settings.max_pending is not None and not settings.delayed:
        raise InvalidTopic("max_pending is for delayed topics: with delayed=False nothing is pending")
    for name in _LOCAL_RETENTION:
        if getattr(settings, name) is not None and not settings.remote_storage_enable:
            raise InvalidTopic(f"{name} is for topics with remote_storage_enable=True: elsewhere nothing has a copy")
    if settings.topic_id is not None and not (isinstance(settings.topic_id, str) and is_attempt(settings.topic_id)):
        raise InvalidTopic(f"a topic's id is 32 hex digits, not {settings.topic_id!r:.100}")
    for name, words in (("backlog_quota_policy", BacklogQuotaPolicy), ("on_expiry", OnExpiry)):
        word, known = getattr(settings, name), get_args(words)
        if not isinstance(word, str) or word not in known:
            raise InvalidTopic(f"{name} is one of {', '.join(known)}, not {word!r:.100}")
    if settings.has_backlog_quota and not settings.retention_by_subscriptions:
        raise InvalidTopic(
            "a backlog has a quota where retention_by_subscriptions=True keeps it; elsewhere none is kept"
        )
    return settings


def asked_settings(partitions: int, delayed: bool, options: Mapping[str, Any]) -> TopicSettings:
    """What a caller asks for in `TopicChanges`, checked. Raises InvalidTopic, WrongType."""
    asked = asked_values(options, TopicChanges.__annotations__)
    return checked(_rounded(TopicSettings(partitions=partitions, delayed=flag("delayed", delayed), **asked)))


def altered(settings: TopicSettings, options: Mapping[str, Any], partitions: int | None = None) -> TopicSettings:
    """Those settings with what a caller asks for in `TopicChanges`, and more partitions; checked.

    Raises InvalidTopic where that cannot be, WrongType.
    """
    if settings.foreign:
        raise InvalidTopic("a Kafka broker's log is only read: change its topic there")
    asked = asked_values(options, TopicChanges.__annotations__)
    if partitions is not None:
        asked["partitions"] = partitions
    changed = checked(_rounded(replace(settings, **asked)))
    if changed.partitions < settings.partitions:
        raise InvalidTopic(f"partitions can be added, and not taken away: there are {settings.partitions}")
    if settings.remote_storage_enable and not changed.remote_storage_enable:
        raise InvalidTopic("what is in object storage may be nowhere else: delete the topic, or leave it there")
    return changed


def _rounded(settings: TopicSettings) -> TopicSettings:
    """With as many partitions more as make each priority have the same."""
    numbers = settings.partitions, settings.priorities
    if not all(type(each) is int and each > 0 for each in numbers):  # `checked` says what they are
        return settings
    return replace(settings, partitions=settings.partitions + -settings.partitions % settings.priorities)


def asked_values(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """As `TopicSettings` has them. WrongType where one is none of those known, or has no truth and should."""
    for name in options.keys() - known:
        raise WrongType(f"there is no setting {name!r} here; there are {', '.join(known)}")
    asked = dict(options)
    for name, value in options.items():
        if isinstance(getattr(_DEFAULT, name), bool):
            asked[name] = flag(name, value)
        elif isinstance(value, list):
            asked[name] = tuple(value)
    return asked


def differences(there: TopicSettings, asked: TopicSettings) -> list[str]:
    """In words, each setting that is another one than was asked for."""
    compared = [each.name for each in fields(there) if each.compare]
    names = [name for name in compared if getattr(there, name) != getattr(asked, name)]
    return [f"{name}={getattr(there, name)!r}, not {getattr(asked, name)!r}" for name in names]


def topics_of_json(body: dict[str, Any], path: Path) -> dict[str, TopicSettings]:
    """What a document says that was read from `path`. Raises CorruptFile."""
    from afterlog.base.document import well_typed  # which reads files; who has settings alone imports no numpy

    try:
        return {
            check_name(name): checked(well_typed(TopicSettings(**_tuples(settings)))) for name, settings in body.items()
        }
    except (AttributeError, TypeError, InvalidTopic) as error:
        raise CorruptFile(f"settings of an unknown kind: {error}", path=path) from error


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    """As the document has them."""
    values = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values
        if name not in _WHERE_SET
        or (value is not getattr(_DEFAULT, name) and value != ())  # a local retention of 0 is one
    }
