"""The name of a slice of a log between processes; its bytes are those of `afterlog.records.origin_slice`."""

from __future__ import annotations

from typing import Final

SLICE: Final = "application/vnd.afterlog.slice"
