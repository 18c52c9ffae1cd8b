"""What one reader of a subscription decides for itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from afterlog.base.errors import InvalidSubscription
from afterlog.subscription.intake import check_limits
from afterlog.subscription.policy import Random, RetryPolicy, check_span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What one reader decides for itself. InvalidSubscription where it cannot be."""

    retry: RetryPolicy
    lease_ms: int
    dead_letter: str | None
    random: Random | None
    """For the jitter of retries; None: no jitter."""
    auto_extend: bool = True
    """Whether a message whose block is open stays leased."""
    max_lease_ms: int = 3_600_000
    """Since its delivery; then it is another reader's, and counts as failed."""
    rate: float | None = None
    max_in_flight: int | None = None
    """See `Intake`."""
    durable_leases: bool = False
    """The lease outlives this process: for readers elsewhere, as the server has."""
    policy: RetryPolicy = field(init=False)
    """When to give up: without dead letters never."""

    def __post_init__(self) -> None:
        check_span("lease_ms", self.lease_ms, 1)
        check_span("max_lease_ms", self.max_lease_ms, 1)
        check_limits(self.rate, self.max_in_flight)
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidSubscription(f"retry must be a RetryPolicy, not {self.retry!r}")
        retries = self.retry if self.dead_letter is not None else replace(self.retry, attempts=None)
        object.__setattr__(self, "policy", retries)
