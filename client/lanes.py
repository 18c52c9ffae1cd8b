"""Lanes: a producer id for each connection, so that a send that is retried is appended once (promise D11).

One request at a time is under way on a lane. Its records go by (producer id, epoch, sequence), the sequence counted for
each partition. Where an answer was lost the same request goes out again, and gets the first answer. Where nobody knows
whether a request was taken, nor will, the lane becomes another producer: the same number never names other records.
"""

from __future__ import annotations

from typing import Any

from afterlog.base.environment import random_bits
from afterlog.base.errors import AfterlogError
from afterlog.client.call import Call, HttpRequest, LaneSequence

SEQUENCES = 1 << 31
"""They wrap around, as Kafka's do."""
_FORGOTTEN = ("OutOfOrderSequence", "ProducerFenced")
"""The log does not know this producer as it was."""


class Lane:
    """Used by who has it."""

    def __init__(self) -> None:
        self._become_another()
        self._in_doubt = False

    def request(self, asked: Call[Any]) -> HttpRequest:
        """What to send. It is in doubt from now on, until it is `settled`."""
        sending = asked.sending
        if sending is None:
            return asked.request
        sequence = self._sequences.get((sending.topic, sending.partition), 0)
        self._in_doubt = True
        return sending.request(LaneSequence(self._producer_id, 0, sequence))

    def settled(self, asked: Call[Any]) -> None:
        """It is done."""
        sending = asked.sending
        if sending is not None:
            place = sending.topic, sending.partition
            self._sequences[place] = (self._sequences.get(place, 0) + sending.records) % SEQUENCES
        self._in_doubt = False

    def refused(self, error: AfterlogError) -> bool:
        """It was not done. Whether the log has forgotten the producer, which is another one now: send it again."""
        self._in_doubt = False
        if not is_forgotten(error):
            return False
        self._become_another()
        return True

    def left(self) -> None:
        """Whoever had it has gone: of what is in doubt nobody will know."""
        if self._in_doubt:
            self._become_another()
            self._in_doubt = False

    def _become_another(self) -> None:
        self._producer_id = random_bits(63)
        self._sequences: dict[tuple[str, int], int] = {}


def is_forgotten(error: AfterlogError) -> bool:
    return type(error).__name__ in _FORGOTTEN
