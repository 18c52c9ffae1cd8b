"""Delayed topics for a Kafka that is there: records go from inputs to the topics that they name, once they are due.

Kafka is the log, the judge and the group; nothing here is distributed, and nothing here is the truth. What a worker has
on disk is a cache, which it makes again from Kafka. Each record is delivered in one transaction with what says that it
was (`rectangle`), so exactly once. Begin with `relay_partition`, which has the rules; `relay` runs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterlog.relay.instruction import HeaderNames
    from afterlog.relay.relay import PartitionStatus, Relay
    from afterlog.relay.relay_settings import RelaySettings, read_settings
    from afterlog.relay.scheduler import Scheduler

_MODULE_OF = {
    "HeaderNames": "instruction", "PartitionStatus": "relay", "Relay": "relay", "RelaySettings": "relay_settings",
    "Scheduler": "scheduler", "read_settings": "relay_settings",
}  # fmt: skip

__all__ = ["HeaderNames", "PartitionStatus", "Relay", "RelaySettings", "Scheduler", "read_settings"]


def __getattr__(name: str) -> Any:
    """With the first use: who only sends needs no client of Kafka here."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'afterlog.relay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"afterlog.relay.{_MODULE_OF[name]}"), name)
