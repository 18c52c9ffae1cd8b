"""Which topics a store has: one document of all, one a topic for those made later, and what may be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from afterlog.base import document
from afterlog.base.errors import CorruptFile
from afterlog.base.files import Files
from afterlog.log.topic_settings import TopicSettings
from afterlog.log.topics_document import (
    FORMAT,
    VERSION,
    add_topics,
    legible_topics,
    read_topics,
    sync_names,
    write_topics,
)
from tests.campaigns.crash_states import crash_states
from tests.campaigns.failing_files import FailingFiles
from tests.campaigns.simulated_disk import Image, Mark, SimulatedFiles
from tests.support import power_cut

STORE = Path("/store")
LATER = STORE / "later-topics"
ALL = {"a": TopicSettings(), "b.tmp": TopicSettings(partitions=2), "b": TopicSettings(delayed=False)}
LONGEST = "x" * 249


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Image([str(STORE)]))


def added(files: Files, topics: dict[str, TopicSettings] = ALL) -> None:
    for name, settings in topics.items():
        add_topics(files, STORE, {name: settings})


def test_each_topic_is_there_when_it_was_added_also_after_a_power_cut(files: SimulatedFiles) -> None:
    assert {} == read_topics(files, STORE)
    files.sync_folder(STORE)
    for count, (name, settings) in enumerate((ALL | {LONGEST: TopicSettings()}).items(), 1):
        add_topics(files, STORE, {name: settings})
        assert count == len(read_topics(power_cut(files), STORE))
    assert ALL | {LONGEST: TopicSettings()} == read_topics(files, STORE)


def test_every_power_cut_leaves_those_that_were_added_and_maybe_the_one_that_was_not_yet(files: SimulatedFiles) -> None:
    states = 0
    for name, settings in ALL.items():
        add_topics(files, STORE, {name: settings})
        files.mark(name)
    done: list[str] = []
    for point, operation in enumerate(files.operations):
        if isinstance(operation, Mark):
            done.append(str(operation.event))
        for state in crash_states(files.operations, point + 1, start=Image([str(STORE)])):
            names = set(read_topics(state.files(), STORE))
            assert names in (set(done), {*done, *list(ALL)[: len(done) + 1]}), state
            states += 1
    assert states > 50


def test_what_one_costs_does_not_depend_on_how_many_there_are(files: SimulatedFiles) -> None:
    counting = FailingFiles(files, lambda operation, path, call: None)
    added(counting, {f"t{number}": TopicSettings() for number in range(3)})
    costs = []
    for number in range(3, 30):
        before = counting.calls
        add_topics(counting, STORE, {f"t{number}": TopicSettings()})
        costs.append(counting.calls - before)
    assert {costs[0]} == set(costs)
    assert 30 == len(read_topics(files, STORE))


def test_the_document_of_all_counts_and_is_all_that_is_left_when_it_is_written(files: SimulatedFiles) -> None:
    added(files)
    document.write(files, LATER / "a-0", FORMAT, VERSION, {"a": {"partitions": 9}})
    assert ALL == read_topics(files, STORE)
    others = {"b": TopicSettings(partitions=7), "c": TopicSettings()}
    write_topics(files, STORE, others)
    assert (others, []) == (read_topics(power_cut(files), STORE), files.names(LATER))


def test_one_that_cannot_be_read_leaves_the_others_legible(files: SimulatedFiles) -> None:
    added(files)
    files.unlink(LATER / "b-0")
    files.create(LATER / "b-0").append([b"afterlog-topics 1 00000000\n{}\n"])
    topics, [fault] = legible_topics(files, STORE)
    assert (["a", "b.tmp"], LATER / "b-0") == (list(topics), fault.path)
    with pytest.raises(CorruptFile, match="not an intact"):
        read_topics(files, STORE)


@pytest.mark.parametrize("body", [{}, {"b": {}, "c": {}}, {"c": {}}])
def test_a_document_in_the_place_of_another(files: SimulatedFiles, body: dict[str, object]) -> None:
    added(files)
    document.write(files, LATER / "b-0", FORMAT, VERSION, body)
    with pytest.raises(CorruptFile, match="the document of") as raised:
        read_topics(files, STORE)
    assert LATER / "b-0" == raised.value.path


def test_what_an_unfinished_creation_left_is_no_topic(files: SimulatedFiles) -> None:
    added(files)
    files.create(LATER / "c-0.tmp").append([b"afterlog-topics"])
    assert ALL == read_topics(files, STORE)


def test_names_that_are_found_are_durable_before_they_are_believed(files: SimulatedFiles) -> None:
    added(files)
    files.rename(LATER / "b-0", LATER / "moved-0")
    files.rename(LATER / "moved-0", LATER / "b-0")
    sync_names(files, STORE)
    assert ALL == read_topics(power_cut(files), STORE)
