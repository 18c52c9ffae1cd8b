"""The retry policy: how long a record stays away after it failed, and how often it may fail.

    attempt      1        2        3        4   …      delay = first_ms * factor ** (attempt - 1), at most max_ms,
    delay    1,000    2,000    4,000    8,000   …      shortened at random by up to the share `jitter`

Jitter shortens and never lengthens, so that `max_ms` holds, and so that records that reached it do not come in step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Protocol

from afterlog.base.errors import InvalidSubscription

if TYPE_CHECKING:  # a client says how retries go, and the server computes them
    import numpy as np
    import numpy.typing as npt

    from afterlog.index.growing_columns import Int64Array

DELAY_MS_MAX = 10 * 366 * 86_400_000
"""Ten years: what is away for longer is not retried but lost."""


def check_span(name: str, ms: int, least: int) -> None:
    """Raises InvalidSubscription where a time is no integer from `least` to ten years."""
    if isinstance(ms, bool) or not isinstance(ms, int) or not least <= ms <= DELAY_MS_MAX:
        raise InvalidSubscription(f"{name} must be {least} to {DELAY_MS_MAX} (ten years), not {ms}")


class Random(Protocol):
    """Where jitter comes from; `numpy.random.Generator` is one."""

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Uniform over [0, 1)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff. InvalidSubscription where the numbers make no sense.

    >>> import numpy as np
    >>> RetryPolicy(first_ms=1_000, factor=3, max_ms=20_000, jitter=0, attempts=5).delays_ms(np.arange(1, 5))
    array([ 1000,  3000,  9000, 20000])
    """

    first_ms: int = 1_000
    """Delay after the first failure."""
    factor: float = 2.0
    """By which the delay grows with each further one. 1: always the same."""
    max_ms: int = 600_000
    """The largest delay."""
    jitter: float = 0.1
    """Share of the delay, 0 to 1, by which it is shortened at random. Larger: less in step, sooner."""
    attempts: int | None = 16
    """A record that failed so often goes to the dead letters. None: it is retried for ever."""

    def __post_init__(self) -> None:
        for name, kind in (("first_ms", int), ("factor", Real), ("max_ms", int), ("jitter", Real), ("attempts", int)):
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, kind) or (value is None and name == "attempts")):
                raise InvalidSubscription(f"{name} must be a number, not {value!r}")
        if not 0 <= self.first_ms <= self.max_ms <= DELAY_MS_MAX:
            raise InvalidSubscription(f"0 <= first_ms <= max_ms <= {DELAY_MS_MAX} (ten years) does not hold")
        if not 1 <= self.factor <= 1_000:
            raise InvalidSubscription(f"factor must be 1 to 1000, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise InvalidSubscription(f"jitter must be a share of 0 to 1, not {self.jitter}")
        if self.attempts is not None and self.attempts < 1:
            raise InvalidSubscription(f"attempts must be at least 1, not {self.attempts}; None is without limit")

    def delay_ms(self, attempt: int, random: Random | None = None) -> int:
        """The delay after the `attempt`-th failure, counted from 1."""
        import numpy as np

        return int(self.delays_ms(np.array([attempt]), random)[0])

    def delays_ms(self, attempt: Int64Array, random: Random | None = None) -> Int64Array:
        """The same for a column. Without `random` there is no jitter."""
        import numpy as np

        steps = np.clip(attempt - 1, 0, self._steps_to_max())
        delay = np.minimum(self.first_ms * float(self.factor) ** steps, self.max_ms)
        if random is not None and self.jitter:
            delay *= 1 - self.jitter * random.random(len(attempt))
        delays: Int64Array = delay.astype(np.int64)
        return delays

    def gives_up(self, failures: int) -> bool:
        """Whether a record that failed so often is not to be tried again."""
        return self.attempts is not None and failures >= self.attempts

    def exhausted(self, failures: Int64Array) -> npt.NDArray[np.bool_]:
        """`gives_up` for a column."""
        import numpy as np

        if self.attempts is None:
            return np.zeros(len(failures), np.bool_)
        return failures >= self.attempts

    def _steps_to_max(self) -> int:
        """Failures after which the delay does not grow any more: a larger power could overflow."""
        if self.factor == 1 or not self.first_ms:
            return 0
        return math.ceil(math.log(self.max_ms / self.first_ms) / math.log(self.factor)) + 1
