"""The notes at the end of a log: control batches without targets (`afterlog.records.control`), looked up one by one."""

from __future__ import annotations

import numpy as np

from afterlog.base.errors import CorruptFile
from afterlog.fetch.append_order import segment_of
from afterlog.log.partition_log import PartitionLog
from afterlog.log.scan import steps
from afterlog.log.segment import SealedSegment
from afterlog.records.control import Note, read_controls

LATEST_CONTROLS = 128
"""So many control batches are looked at."""


def latest_notes(log: PartitionLog) -> list[Note]:
    """What was noted here, and not in a log that was replicated from, among the last control batches; ascending.

    Raises CorruptFile.
    """
    version = log.pin()
    visible, start = version.readable(), version.log_start_offset
    controls = np.sort(version.cancellations.controls.offsets())
    controls = controls[(controls >= start) & (controls < visible.end.offset)][-LATEST_CONTROLS:]
    if version.origins is not None:
        controls = controls[version.origins.origins(controls)[0] < 0]
    found = log.find(controls, version)
    notes = list[Note]()
    for offset, position in zip(controls.tolist(), found.position.tolist(), strict=True):
        segment = segment_of(visible.segments, offset)
        stop = segment.size if isinstance(segment, SealedSegment) else visible.end.position
        for step in steps(segment.view(position, stop), position, stop, limit=1):
            if step.fault and not len(step.found.offset):
                raise CorruptFile(step.fault, path=segment.path, position=position)
            notes += read_controls(step.piece, step.found.moved(-step.start)).notes
            break
    return notes
