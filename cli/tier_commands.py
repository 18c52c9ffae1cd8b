"""`afterlog offload | scrub | restore`: upload segments to object storage, verify them there, bring them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterlog.base.errors import CorruptRemote, UnknownTopic
from afterlog.cli.base import (
    FINDINGS,
    JSON,
    NOT_FOUND,
    REMOTE,
    Failure,
    StoreCommand,
    noted_remote,
    opened_here,
    remote_store,
    store_arguments,
)
from afterlog.cli.input import Duration

if TYPE_CHECKING:
    from afterlog.fetch.partition import Partition
    from afterlog.log.checkpoints import SealedMark
    from afterlog.store.store import Store
    from afterlog.tier.manifest import Manifest
    from afterlog.tier.scrub import Discrepancy

    Marks = Callable[[], Sequence[SealedMark]]


@click.command(cls=StoreCommand)
@store_arguments
@click.option("--topic", help="Only this topic.")
@click.option("--roll", is_flag=True, help="Seal what is being appended to first, so that everything goes up.")
@JSON
def offload(data: Path, topic: str | None, roll: bool, as_json: bool) -> None:
    """Upload sealed segments, and apply local retention.

    For topics made with --remote-storage; a store that stays open does it by itself. What retention has removed from
    the log goes from object storage, too. Says of each partition what was done, also where a later one fails.
    """
    from afterlog.cli.output import json_line

    noted_remote()
    with opened_here(data, background=False) as store:
        chosen = store.topics() if topic is None else [store.topic(topic)]
        tiered = [each for each in chosen if each.settings.remote_storage_enable and not each.settings.foreign]
        if not tiered:
            raise click.UsageError(f"{topic or 'every topic'} was made without --remote-storage, or is only read")
        for partition in (partition for each in tiered for partition in each.partitions):
            row = _offloaded(store, partition, roll=roll)
            click.echo(json_line(row) if as_json else _offloaded_line(row))


def _offloaded(store: Store, partition: Partition, *, roll: bool) -> dict[str, Any]:
    """Offload one partition, and say what was done."""
    offloader = None if store.tiering is None else store.tiering.offloader(partition.topic, partition.number)
    assert offloader is not None, "the topic has remote_storage_enable"
    return {"topic": partition.topic, "partition": partition.number, **asdict(offloader.offload(roll=roll))}


def _offloaded_line(row: dict[str, Any]) -> str:
    return (
        f"{row['topic']}-{row['partition']}: {row['uploaded']} uploaded, {row['freed']} no longer here, "
        f"{row['expired']} removed by retention, {row['removed']} removed from object storage"
    )


@click.command()
@click.argument("data", required=False, envvar="AFTERLOG_DATA", type=click.Path(path_type=Path))
@REMOTE
@click.option("--topic", help="Only this topic.")
@click.option("--deep", is_flag=True, help="Read every byte of every listed segment.")
@click.option("--remove-extra", is_flag=True, help="Delete objects of ours that no manifest names.")
@click.option("--end-unfinished", type=Duration(), metavar="AGE", help="End uploads and removals begun that long ago.")
@JSON
def scrub(
    data: Path | None,
    remote: str | None,
    topic: str | None,
    deep: bool,
    remove_extra: bool,
    end_unfinished: int | None,
    as_json: bool,
) -> int:
    """Compare object storage with its manifests.

    \b
    MISSING      a listed segment lacks an object
    PARTIAL      an object of it has another size
    CORRUPT      its bytes are others (looked at with --deep), or a manifest fails its checks
    EXTRA        an object that no manifest names
    UNFINISHED   an upload or a removal that runs, or broke off

    Needs no store. With DATA, which may be open: also whether all is listed that this store takes for uploaded. Exit
    code 1 where something is MISSING, PARTIAL or CORRUPT.
    """
    from afterlog.base.clock import SystemClock
    from afterlog.cli.output import json_line, progress
    from afterlog.tier.manifest import Manifest
    from afterlog.tier.scrub import FAULTS, survey

    storage = remote_store(remote)
    partitions, beside = survey(storage)
    stored = {} if data is None else _marks_of(data)
    chosen = sorted(each for each in partitions | stored.keys() if topic in (None, _topic_of(each)))
    if topic is not None and not chosen:
        raise UnknownTopic(f"no topic {topic!r} there")
    before_ms = None if end_unfinished is None else SystemClock().now_ms() - end_unfinished
    found: list[Discrepancy] = []

    def tell(finding: Discrepancy, done: str | None = None) -> None:
        found.append(finding)
        row = {"kind": finding.kind, "key": finding.key, "reason": finding.reason, "done": done}
        key = finding.key if finding.key.isprintable() else ascii(finding.key)
        line = f"{finding.kind:<10} {key}: {finding.reason}" + (f"; {done}" if done else "")
        click.echo(json_line(row) if as_json else line)

    for finding in beside if topic is None else ():
        tell(finding)
    with progress("scrubbing", len(chosen)) as advance:
        for partition in chosen:
            manifest = Manifest(storage, partition)
            for finding, done in _scrubbed(manifest, stored.get(partition), deep, remove_extra, before_ms):
                tell(finding, done)
            advance(1)
    count, looked_at = len(found), len(chosen)
    told = f"{count or 'no'} finding{'s' * (count != 1)} in {looked_at} partition{'s' * (looked_at != 1)}"
    click.echo(told, err=True)
    return FINDINGS if any(finding.kind in FAULTS for finding in found) else 0


def _scrubbed(
    manifest: Manifest, marks: Marks | None, deep: bool, remove_extra: bool, before_ms: int | None
) -> Iterator[tuple[Discrepancy, str | None]]:
    """What is found of a partition, and what was done about it."""
    from afterlog.tier import remove
    from afterlog.tier.scrub import FindingKind, scrub, unfinished, unlisted

    if before_ms is not None:
        with contextlib.suppress(CorruptRemote):  # a finding, below
            for row in remove.remove_leftovers(manifest, started_before_ms=before_ms):
                yield unfinished(manifest, row), "ended"
    findings = scrub(manifest, deep=deep)
    for finding in findings:
        done = None
        if remove_extra and finding.kind == FindingKind.EXTRA:
            done = "deleted" if remove.remove_extra(manifest, finding.key) else "kept, for it is not ours"
        yield finding, done
    if marks is not None and all(finding.key != manifest.key for finding in findings):
        yield from ((finding, None) for finding in unlisted(manifest, marks))


def _marks_of(data: Path) -> dict[str, Marks]:
    """How to ask the partitions of a store that have segments in object storage what they take for uploaded."""
    from afterlog.base.files import ReadOnlyFiles
    from afterlog.base.names import CHECKPOINTS, partition_folder
    from afterlog.log.checkpoints import CheckpointFile
    from afterlog.log.topics_document import is_store, read_topics

    files = ReadOnlyFiles()
    if not is_store(files, data):
        raise Failure(f"there is no store in {data}", NOT_FOUND)

    def marks(folder: str) -> Sequence[SealedMark]:
        return CheckpointFile.open(files, data.absolute() / folder / CHECKPOINTS).current.sealed

    return {
        folder: partial(marks, folder)
        for name, settings in read_topics(files, data.absolute()).items()
        if settings.remote_storage_enable
        for folder in (partition_folder(name, number) for number in range(settings.partitions))
    }


def _topic_of(partition: str) -> str:
    return partition.rpartition("-")[0]


@click.command(cls=StoreCommand)
@store_arguments
@click.option("--partial", is_flag=True, help="Also where segments are missing between others: give them up.")
@JSON
def restore(data: Path, partial: bool, as_json: bool) -> int:
    """Make the store DATA of what object storage has, on a machine that has nothing else.

    Opening an empty folder with --remote does it, too; this says what came. What is not in object storage is lost:
    records after the last segment that was uploaded, positions and subscriptions. Exit code 1 where segments that were
    sealed are missing.
    """
    from afterlog.base.files import OsFiles
    from afterlog.base.names import TOPICS
    from afterlog.cli.output import amount, json_line, table
    from afterlog.tier.remote_topics import read_remote_topics

    if not read_remote_topics(noted_remote()):
        raise Failure("no topics in this object storage", NOT_FOUND)
    if OsFiles().exists(data / TOPICS):
        raise click.UsageError(f"there is a store in {data}: restore into an empty folder")
    with opened_here(data, create=True, background=False, partial=partial) as store:
        rows = [_restored(store, partition) for topic in store.topics() for partition in topic.partitions]
    if as_json:
        for row in rows:
            click.echo(json_line(row))
    else:
        headings = ("PARTITION", "SEGMENTS", "SIZE", "RECORDS", "OFFSETS", "MISSING")
        table(headings, [_restored_cells(row, amount(row["bytes"])) for row in rows])
        click.echo("what was appended behind these offsets, positions and subscriptions are not there", err=True)
    return FINDINGS if any(row["missing"] for row in rows) else 0


def _restored(store: Store, partition: Partition) -> dict[str, Any]:
    """What came of a partition. missing: records that were sealed, and neither uploaded nor removed by retention."""
    from afterlog.tier.manifest import Manifest

    assert store.tiering is not None, "there is a --remote"
    known = partition.log.checkpoints.current
    foreign = partition.log.read_only  # what it lacks are gaps
    facts = Manifest(store.tiering.remote, partition.log.context.folder.name).content().log
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "segments": len(known.sealed),
        "bytes": sum(mark.log_bytes for mark in known.sealed),
        "records": sum(mark.records for mark in known.sealed),
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": partition.log_end_offset,
        "missing": 0 if foreign else known.removed_records - (0 if facts is None else facts.removed_records),
    }


def _restored_cells(row: dict[str, Any], size: str) -> list[Any]:
    offsets = f"{row['log_start_offset']} to {row['log_end_offset']}"
    return [f"{row['topic']}-{row['partition']}", row["segments"], size, row["records"], offsets, row["missing"]]
