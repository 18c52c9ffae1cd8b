"""How one reader reads a subscription: the keywords of `store.subscribe`, wherever the store is.

A new one is a line in `ReaderOptions` and a field of `ReaderSettings`. By that it is in the signatures and the help of
all of them (`base/arguments.py`), and in the JSON that a server is sent and checks (`api/reader_json.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypedDict, get_args

from afterlog.base.arguments import check_known, flag
from afterlog.base.errors import InvalidSubscription
from afterlog.base.names import check_name
from afterlog.fetch.positions import EARLIEST, Position
from afterlog.subscription.flow_control import check_limits
from afterlog.subscription.policy import RetryPolicy, check_span

if TYPE_CHECKING:
    from afterlog.subscription.policy import Random

OrderedBy = Literal["key"]
"""By what the records of a subscription wait for each other."""

LEAST_MS: Final = {"lease_ms": 1, "max_lease_ms": 1, "delay_ms": 0, "ack_group_ms": 0}
AT_READER: Final = {"at": "the reader"}
"""What the process sees to in which the reader is: a server is not told of it."""


class ReaderOptions(TypedDict, total=False):
    """What `store.subscribe` and `Worker.handle` take by keyword."""

    retry: RetryPolicy | None
    lease_ms: int
    dead_letter: str | None
    start: Position
    delay_ms: int
    partitions: Sequence[int] | None
    random: Random | None
    auto_extend: bool
    max_lease_ms: int
    rate: float | None
    max_in_flight: int | None
    durable_leases: bool | None
    replicated: bool | None
    ack_group_ms: int
    ordered_by: OrderedBy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """All of `ReaderOptions`, checked. Raises InvalidSubscription, InvalidTopic, WrongType.

    What each is, `store.subscribe` says. metadata: `about` for the description of the API, where its name does not do.
    """

    retry: RetryPolicy | None = None
    lease_ms: int = 30_000
    dead_letter: str | None = field(default=None, metadata={"about": "the topic of what is given up"})
    start: Position = field(default=EARLIEST, metadata={"about": "where the subscription begins when it is new"})
    delay_ms: int = 0
    partitions: Sequence[int] | None = None
    random: Random | None = field(default=None, metadata=AT_READER)
    auto_extend: bool = field(default=True, metadata=AT_READER)
    max_lease_ms: int = field(default=3_600_000, metadata=AT_READER)
    rate: float | None = field(default=None, metadata=AT_READER)
    max_in_flight: int | None = field(default=None, metadata=AT_READER)
    durable_leases: bool | None = field(default=None, metadata={"about": "leases outlive the server, as by default"})
    replicated: bool | None = field(
        default=None, metadata={"about": "other clusters have it, too, or do not; as it is where it is left out"}
    )
    ack_group_ms: int = field(default=0, metadata=AT_READER)
    ordered_by: OrderedBy | None = field(
        default=None, metadata={"about": "the records of a key go out one after the other; as it is where left out"}
    )
    policy: RetryPolicy = field(init=False, repr=False)
    """When to retry and to give up: without dead letters never."""

    def __post_init__(self) -> None:
        for name, least in LEAST_MS.items():
            check_span(name, getattr(self, name), least)
        if self.ack_group_ms > self.lease_ms // 4:
            raise InvalidSubscription(f"ack_group_ms is at most a quarter of lease_ms, not {self.ack_group_ms}")
        check_limits(self.rate, self.max_in_flight)
        if self.dead_letter is not None:
            check_name(self.dead_letter)
        retry = RetryPolicy() if self.retry is None else self.retry
        if not isinstance(retry, RetryPolicy):
            raise InvalidSubscription(f"retry must be a RetryPolicy, not {retry!r}")
        object.__setattr__(self, "policy", retry if self.dead_letter is not None else replace(retry, attempts=None))
        object.__setattr__(self, "auto_extend", flag("auto_extend", self.auto_extend))
        for name in ("durable_leases", "replicated"):
            value = getattr(self, name)
            object.__setattr__(self, name, value if value is None else flag(name, value))
        if self.replicated and self.delay_ms:
            raise InvalidSubscription("a replicated subscription sees records when they are due: leave delay_ms out")
        known = self.ordered_by is None or (isinstance(self.ordered_by, str) and self.ordered_by in get_args(OrderedBy))
        if not known:
            raise InvalidSubscription(f"it is ordered by 'key', or not at all, not by {self.ordered_by!r:.100}")
        if self.replicated and self.ordered_by is not None:
            raise InvalidSubscription("a replicated subscription has readers elsewhere: it cannot be ordered by key")

    @classmethod
    def of(cls, options: ReaderOptions) -> ReaderSettings:
        """Of what a call was given. Raises WrongType, too, of a keyword that there is not."""
        check_known("subscribe", options, ReaderOptions)
        return cls(**options)
