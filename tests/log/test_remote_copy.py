from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from afterlog.base.errors import RemoteRefused
from afterlog.index.entries import Key
from afterlog.index.run import Coverage
from afterlog.log.checkpoints import RemoteMark, SealedMark
from afterlog.log.facts import FileMark
from afterlog.log.remote_copy import NO_REMOTE_LOG, outline

MARK = SealedMark(
    base_offset=100, end_offset=150, log_bytes=4_000, max_deliver_after=77, max_timestamp=5, index=FileMark(8, 1),
    time_index=FileMark(12, 2), remote=RemoteMark(attempt="0" * 32, run=FileMark(900, 3), local=False),
)  # fmt: skip
NONE = np.empty(0, np.int64)


def test_what_is_known_of_a_run_without_reading_it() -> None:
    known = outline(MARK)
    assert (Coverage(100, 150, 100, 0, 100, 4_000), 50, Key(77, 149)) == known


def test_without_object_storage_everything_known_can_be_had() -> None:
    run = NO_REMOTE_LOG.copy(MARK).run()
    assert (True, 50, Key(77, 149), 900) == (run.remote, run.records, run.last_key, run.size)
    NO_REMOTE_LOG.copy(MARK).forget()


@pytest.mark.parametrize(
    "call", [
        lambda copy: copy.view(0, 1), lambda copy: copy.gather(NONE, NONE, 1), lambda copy: copy.sparse(),
        lambda copy: copy.cancel_index(), lambda copy: copy.run().count, lambda copy: copy.run().contains(101),
        lambda copy: copy.run().cursor(), lambda copy: copy.bitmap(), lambda copy: copy.segments(0, 0),
    ]
)  # fmt: skip
def test_what_would_have_to_be_read_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(RemoteRefused, match="offsets 100 to 150 lie in object storage: open the store with remote="):
        call(NO_REMOTE_LOG.copy(MARK))
