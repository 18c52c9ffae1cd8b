"""A reader for whose records tasks wait: the few that became due last are taken at once, what may block by a thread."""

from __future__ import annotations

from afterlog.store.aio_calls import Calls, Line, Waiters
from afterlog.subscription.read_ahead import ReadAhead
from afterlog.subscription.received import Received
from afterlog.subscription.subscription import Subscription


class AwaitedReceiver:
    """Of one open reader, in an event loop. Where an await is cancelled, what was taken goes back, uncounted."""

    def __init__(self, subscription: Subscription, calls: Calls, waiters: Waiters) -> None:
        self._subscription = subscription
        self._receiver = subscription.receiver
        self._calls = calls
        self._line = Line(waiters, self._receiver.agenda)

    async def receive(self, max_records: int, wait_s: float | None) -> Received | None:
        """Lease up to so many due records; None where nothing is due, nor was for so long. wait_s: None waits for ever.

        Raises as `Subscription.receive`.
        """
        if wait_s is not None and wait_s <= 0:
            return await self._taken(max_records)
        return await self._line.found(lambda: self._taken(max_records), wait_s)

    async def fill(self, ahead: ReadAhead) -> None:
        """Return once an iteration has something ahead, or has ended."""
        await self._line.found(lambda: self._filled(ahead), None)

    async def _taken(self, max_records: int) -> Received | None:
        receiver = self._receiver
        rows = receiver.agenda.rows()
        found = receiver.few_at_once(max_records, rows) if rows else None
        if found is None and (receiver.ended or len(rows) > 1 or (rows and receiver.agenda.due())):
            return await self._calls.run(lambda: receiver.take(max_records), self._give_back)
        return found

    async def _filled(self, ahead: ReadAhead) -> bool:
        receiver = self._receiver
        filled = receiver.fill_at_once(ahead)
        if filled is None:
            return await self._calls.run(lambda: receiver.fill(ahead), lambda _: receiver.end(ahead))
        return filled

    def _give_back(self, received: Received | None) -> None:
        if received is not None:
            self._subscription.release(received)
