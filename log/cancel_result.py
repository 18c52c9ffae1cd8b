"""The result of a cancel; a module of its own, since a client needs it and no numpy."""

from __future__ import annotations

import enum


class CancelResult(enum.IntEnum):
    """What came of a cancel; the numbers that `cancel_many` answers with."""

    CANCELLED = 0
    """It will not be delivered: it was pending until now."""
    ALREADY_DELIVERED = 1
    """It is due, and so delivered, or about to be."""
    ALREADY_CANCELLED = 2
    """It was cancelled, or rescheduled, before."""
    UNKNOWN = 3
    """No such record: it was never appended, retention has removed it, or the offset is a control record's."""
