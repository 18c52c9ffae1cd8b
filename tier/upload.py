"""Upload of sealed segments: each is listed whole or not at all, and by one uploader only, whatever fails.

    1  measure the files on disk: size, CRC-32C; they are as they were sealed
    2  manifest: a row COPY_STARTED                           the attempt is known, and so is what it may leave behind
    3  put each file under a key of this attempt              data first
    4  verify each object: size, and CRC-32C read back
    5  manifest: the row becomes COPY_FINISHED                the segment is listed
    6  read the manifest back                                 only now may the local copy go

    where another attempt is listed by then: the row becomes DELETE_STARTED, the objects go, the row goes

A crash or an error between any two steps leaves a row that is not COPY_FINISHED: nobody reads it, `scrub` names it, and
`remove_leftovers` ends it. To go on, call again with a new attempt: an attempt is never used twice, so that whoever
deletes what is left of one can hit no other. A segment that is listed already is not uploaded again.

The manifest decides every race, because it changes by conditional put only. An uploader that was taken for dead finds
its row moved to DELETE_STARTED and cannot finish. What it puts after its objects were deleted belongs to no row, which
`scrub` names; a row always comes before its objects, so objects without one are nobody's.

Each request, and why it is there. Within `Manifest.remembering` steps 2 and 5 do without their gets:

    get, put_if         step 2: a row before any object, so that an object without a row is nobody's
    put                 step 3: of each file
    head, get_ranges    step 4: of each object, one for each 8 MiB: no storage says what it keeps
    get, put_if         step 5: listed whole, or not at all. What is said of the log goes with it
    get                 step 6: the storage may have kept another manifest than it was given

Several segments may share the changes of the manifest (`upload_together`). A change costs a read and a conditional put
of the whole manifest, and is made again when somebody else was first: those who upload to one partition at a time
should be few, or change it seldom.

A segment that is listed with other indexes than it has is uploaded anew (`upload_instead`): step 5 then moves the old
row to DELETE_STARTED in the same change, and the old attempt is ended after step 6. So it is with segments that were
written anew, of which several may replace several (`upload_replacing`): all of them are listed in one change, or none.

That a listed segment is this one is told by its log: bounds, size and CRC-32C. Where they differ the storage belongs to
another log, and the upload is refused: else the local copy would go for a listing of other people's records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from afterlog.base.errors import CorruptFile, CorruptRemote, RemoteConflict, RemoteError
from afterlog.base.files import map_file
from afterlog.base.names import DELIVER_AFTER_INDEX, LOG
from afterlog.log.facts import NO_FILE
from afterlog.tier.log_facts import LogFacts
from afterlog.tier.manifest import Content, Manifest, Segments, find
from afterlog.tier.remote_segment import RemoteSegment, SegmentFiles, SegmentState
from afterlog.tier.remove import end_attempts
from afterlog.tier.verify_upload import verify_segment

Outcome = RemoteSegment | OSError
"""The row that lists a segment, or why none does."""
TellLog = Callable[[Segments], LogFacts]
"""What is to be said of a log, where these are its rows."""


def upload(
    manifest: Manifest, segment: SegmentFiles, *, attempt: str, now_ms: int, log: TellLog | None = None
) -> RemoteSegment:
    """Upload the segment, unless it is there; the row that lists it, which may be another attempt's.

    `attempt`: `files.unused_name()`. `log`: what the change that lists it says of the log. CorruptFile: the
    local files are not as they were sealed. CorruptRemote: the storage holds other bytes than it was given; they are
    removed. RemoteConflict: the storage lists another log's records at these offsets, or somebody gave this attempt up.
    FileNotFoundError: a local file is gone. RemoteUnavailable, RemoteRefused, StorageFull: call again later.
    """
    return _row(_uploaded(_Uploads(manifest, {attempt: segment}, now_ms, log=log))[attempt])


def upload_together(manifest: Manifest, segments: Mapping[str, SegmentFiles], *, now_ms: int) -> dict[str, Outcome]:
    """Upload segments, each by the attempt that it stands under, with two changes of the manifest for all of them.

    What `upload` returns or raises, by attempt: one that cannot be uploaded holds up no other; none is listed before
    all are there. Raises what reading and changing the manifest raises.
    """
    outcomes = _uploaded(_Uploads(manifest, segments, now_ms))
    return {attempt: outcomes[attempt] for attempt in segments}


def upload_instead(
    manifest: Manifest, segment: SegmentFiles, old: RemoteSegment, *, attempt: str, now_ms: int
) -> RemoteSegment:
    """Upload the segment anew and end the attempt `old`, which lists it; the row that lists it then.

    Who reads by the old row gets RemoteMissing, and reads the manifest again. Raises what `upload` raises;
    RemoteConflict also where `old` does not list it any more.
    """
    listed = _row(_uploaded(_Uploads(manifest, {attempt: segment}, now_ms, [old], same_log=True))[attempt])
    end_attempts(manifest, old)
    return listed


def upload_replacing(
    manifest: Manifest,
    segments: Mapping[str, SegmentFiles],
    old: Sequence[RemoteSegment],
    *,
    now_ms: int,
    log: TellLog,
) -> list[RemoteSegment]:
    """Upload segments, each by the attempt that it stands under, in the place of what is listed at their offsets.

    `old`: all that is, of which nothing else may be left. The rows that list them then; those of `old` are
    DELETE_STARTED, and whoever comes by ends them. Raises what `upload` raises, and then none is listed; where they are
    listed already nothing is done.
    """
    outcomes = _uploaded(_Uploads(manifest, segments, now_ms, old, log=log, together=True))
    return [_row(outcomes[attempt]) for attempt in segments]


def _uploaded(uploads: _Uploads) -> dict[str, Outcome]:
    uploads.begin()
    uploads.copy()
    uploads.finish()
    return uploads.outcomes


def _row(outcome: Outcome) -> RemoteSegment:
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


class _Uploads:
    """Some segments on their way. Each has an outcome in the end."""

    def __init__(
        self,
        manifest: Manifest,
        segments: Mapping[str, SegmentFiles],
        now_ms: int,
        old: Sequence[RemoteSegment] = (),
        *,
        same_log: bool = False,
        together: bool = False,
        log: TellLog | None = None,
    ) -> None:
        """old: what they replace; same_log: of the one segment. together: all are listed, or none."""
        self.outcomes: dict[str, Outcome] = {}
        self._manifest = manifest
        self._segments = segments
        self._old = {row.attempt for row in old}
        self._same_log = same_log
        self._together = together
        self._log = log
        self._rows = [row for attempt in segments if (row := self._measured(attempt, now_ms)) is not None]

    def begin(self) -> None:
        """Step 2."""
        if not self._left():
            return
        rows = self._manifest.update(self._started)
        for ours in self._left():
            if find(rows, ours.attempt) is None:
                self._settle(rows, ours, f"attempt {', '.join(sorted(self._old))} is not listed any more")

    def copy(self) -> None:
        """Steps 3 and 4. Where the storage breaks nothing more is tried, and rows are left over."""
        broken: OSError | None = None
        for ours in self._left():
            if broken is not None:
                self.outcomes[ours.attempt] = broken
                continue
            segment = self._segments[ours.attempt]
            try:
                for suffix, path in segment.paths.items():
                    self._manifest.remote.put(self._manifest.object_key(ours, suffix), map_file(segment.files, path))
                verify_segment(self._manifest, ours)
            except (CorruptRemote, FileNotFoundError) as error:
                self.outcomes[ours.attempt] = error
                with contextlib.suppress(RemoteError):  # what is left is found by a scrub
                    end_attempts(self._manifest, ours)
            except OSError as error:
                self.outcomes[ours.attempt] = broken = error

    def finish(self) -> None:
        """Steps 5 and 6."""
        copied = self._left()
        if self._together and len(copied) < len(self._segments):
            faults = [outcome for outcome in self.outcomes.values() if isinstance(outcome, OSError)]
            others = RemoteConflict("of these some are listed already, and not all", path=self._manifest.key)
            self.outcomes |= {ours.attempt: faults[0] if faults else others for ours in copied}
            with contextlib.suppress(RemoteError):  # what is left is found by a scrub
                end_attempts(self._manifest, *copied)
            return
        if not copied:
            return
        self._manifest.change(lambda content: self._finished(content, copied))
        rows = self._manifest.read()
        for ours in copied:
            self._settle(rows, ours, "somebody gave this attempt up: try again")
        end_attempts(self._manifest, *(ours for ours in copied if not self._is_listed(ours)))

    def _is_listed(self, ours: RemoteSegment) -> bool:
        outcome = self.outcomes[ours.attempt]
        return isinstance(outcome, RemoteSegment) and outcome.attempt == ours.attempt

    def _left(self) -> list[RemoteSegment]:
        return [ours for ours in self._rows if ours.attempt not in self.outcomes]

    def _measured(self, attempt: str, now_ms: int) -> RemoteSegment | None:
        """Step 1."""
        segment = self._segments[attempt]
        try:
            files = segment.measured()
        except (CorruptFile, FileNotFoundError) as error:
            self.outcomes[attempt] = error
            return None
        return RemoteSegment(
            **segment.facts.facts(),
            attempt=attempt,
            state=SegmentState.COPY_STARTED,
            started_ms=now_ms,
            log_crc=files[LOG].crc,
            run=files.get(DELIVER_AFTER_INDEX, NO_FILE),
        )

    def _settle(self, rows: Segments, ours: RemoteSegment, unlisted: str) -> None:
        """The outcome of one that is listed by now, or never will be."""
        listed = next(iter(_listed(rows, ours)), None)
        is_old = listed is not None and listed.attempt in self._old
        if listed is not None and not listed.has_the_log_of(ours) and (self._same_log or not is_old):
            span = f"offsets {listed.base_offset} to {listed.end_offset}"
            why = f"{span} hold other bytes: are they another log's?"
            if ours.generation > listed.generation:
                why = f"{span} are listed as before a cleaning: with remote_storage_enable the store replaces them"
            self.outcomes[ours.attempt] = RemoteConflict(why, path=self._manifest.key)
        elif listed is None or is_old:
            self.outcomes[ours.attempt] = RemoteConflict(unlisted, path=self._manifest.key)
        else:
            self.outcomes[ours.attempt] = listed

    def _started(self, rows: Segments) -> Segments:
        new = [ours for ours in self._left() if self._is_next(rows, ours) and find(rows, ours.attempt) is None]
        return (*rows, *new)

    def _finished(self, content: Content, copied: list[RemoteSegment]) -> Content:
        rows, moves = content.segments, dict[str, SegmentState]()
        begun = [row for ours in copied if (row := find(rows, ours.attempt)) and row.state == SegmentState.COPY_STARTED]
        fit = {row.attempt: self._is_next(rows, row) for row in begun}
        if self._together and not (all(fit.values()) and len(fit) == len(copied)):
            fit = dict.fromkeys(fit, False)
        for attempt, first in fit.items():
            moves[attempt] = SegmentState.COPY_FINISHED if first else SegmentState.DELETE_STARTED
        if any(fit.values()):
            listed = {row.attempt for row in rows if row.state == SegmentState.COPY_FINISHED}
            moves |= dict.fromkeys(self._old & listed, SegmentState.DELETE_STARTED)
        rows = tuple(row.moved_to(moves[row.attempt]) if row.attempt in moves else row for row in rows)
        log = self._log(rows) if self._log is not None and any(fit.values()) else content.log
        return content._replace(segments=rows, log=log)

    def _is_next(self, rows: Segments, ours: RemoteSegment) -> bool:
        """Whether ours may come: nothing is listed at its offsets, or just what it is to replace."""
        listed = _listed(rows, ours)
        if self._same_log and not (listed and listed[0].has_the_log_of(ours)):
            return False
        return all(row.attempt in self._old for row in listed)


def _listed(rows: Segments, ours: RemoteSegment) -> list[RemoteSegment]:
    """The rows that list offsets of ours."""
    return [row for row in rows if row.state == SegmentState.COPY_FINISHED and row.overlaps(ours)]
