"""File names: what is built is parsed again, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base import names
from afterlog.base.errors import InvalidTopic

OFFSETS = st.integers(0, 2**63 - 1)
GOOD = ["a", "A", "0", "_", "a-", "a.b", "a_b", "a-0", "...", ".hidden", "lock", "topics", "x" * 249, "A.b_C-9"]
NASTY = [
    "", ".", "..", "-", "-a", "--help", "-rf", "a/b", "/", "/etc/passwd", "../a", "a/..", "a/../b", "./a", "a/", "//",
    "\\", "a\\b", "..\\a", "\0", "a\0", "\0a", "a\0.log", " ", " a", "a ", "a b", "\t", "a\n", "\n", "a\r\n", "\x7f",
    "\x1b[31m", "x" * 250, "x" * 255, "x" * 256, "x" * 70_000, "é", "e\u0301", "日本", "\u202eabc", "\ufeffa",
    "a\u200b", "\uff41", "\uff11", "\u0663", "\u017f", "\ud800", "😀", "a:b", "a*", "?", "a|b", "<a>", '"a"', "'a'",
    "$HOME", "${a}", "`id`", "$(id)", "%2e%2e", "%00", "~", "~root", "a;b", "a&b", "a,b", "a=b", "a@b", "#a", "!a",
    "a+b", "{a}", "[a]", "(a)", "C:",
]  # fmt: skip


class TestCheckName:
    @pytest.mark.parametrize("name", GOOD)
    def test_kafkas_names_are_taken(self, name: str) -> None:
        assert name == names.check_name(name)

    @pytest.mark.parametrize("name", NASTY, ids=ascii)
    def test_nasty_names_are_refused_and_shown_harmless(self, name: str) -> None:
        with pytest.raises(InvalidTopic, match="cannot name a group") as caught:
            names.check_name(name, "group")
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("name", [None, 1, b"a", ["a"], Path("a")], ids=repr)
    def test_what_is_no_text_is_refused(self, name: object) -> None:
        with pytest.raises(InvalidTopic):
            names.check_name(name)  # type: ignore[arg-type]

    @given(st.text(max_size=300))
    def test_what_is_taken_is_one_harmless_component(self, name: str) -> None:
        try:
            names.check_name(name)
        except InvalidTopic:
            return
        assert (name,) == Path(name).parts
        assert name.isascii()
        assert not name.startswith("-")
        assert name not in ("", ".", "..")


class TestPartitionFolder:
    @given(st.sampled_from(GOOD), st.integers(0, 9_999_999_999))
    def test_what_is_built_is_parsed(self, topic: str, partition: int) -> None:
        assert (topic, partition) == names.parse_partition_folder(names.partition_folder(topic, partition))

    @pytest.mark.parametrize(
        "name", ["a", "a-", "-0", "a-01", "a--", "a-x", "a-0\n", "a-٣", "a/b-0", "a-99999999999", "lock"]
    )
    def test_nothing_else_is(self, name: str) -> None:
        assert names.parse_partition_folder(name) is None

    @pytest.mark.parametrize("name", [f"{name}-0" for name in NASTY], ids=ascii)
    def test_what_is_parsed_is_a_name(self, name: str) -> None:
        parsed = names.parse_partition_folder(name)
        assert parsed is None or parsed[0] == names.check_name(parsed[0])


class TestSegmentFile:
    @given(OFFSETS, st.sampled_from([names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.DELIVER_AFTER_INDEX]))
    def test_what_is_built_is_parsed(self, base_offset: int, suffix: str) -> None:
        for generation in (0, 1, 20):
            name = names.segment_file(base_offset, suffix, generation)
            assert (base_offset, suffix, generation) == names.parse_segment_file(name)

    @given(OFFSETS, OFFSETS)
    def test_names_sort_as_offsets(self, one: int, two: int) -> None:
        assert (one < two) == (names.segment_file(one, names.LOG) < names.segment_file(two, names.LOG))

    def test_as_kafka_names_it(self) -> None:
        assert "00000000000000050000.log" == names.segment_file(50_000, names.LOG)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "0.log",
            "0000000000000005000.log",
            "000000000000000050000.log",
            "00000000000000050000",
            "00000000000000050000.log.tmp",
            "00000000000000050000.log\n",
            "00000000000000050000.LOG",
            "0000000000000005000٣.log",
            "-0000000000000005000.log",
            "09223372036854775808.log",
            "99999999999999999999.log",
            "00000000000000050000.0.log",
            "00000000000000050000.01.log",
            "00000000000000050000..log",
            "00000000000000050000.1.2.log",
        ],
    )
    def test_nothing_else_is(self, name: str) -> None:
        assert names.parse_segment_file(name) is None


class TestBucketFile:
    @given(OFFSETS, OFFSETS)
    def test_what_is_built_is_parsed(self, first: int, end: int) -> None:
        low, high = sorted((first, end))
        for generation in (0, 1, 20):
            parsed = names.parse_bucket_file(names.bucket_file(low, high, generation))
            assert ((low, high, generation) if low < high else None) == parsed

    @pytest.mark.parametrize(
        "name",
        [
            "00000000000000000000-00000000000000000005.log",
            "00000000000000000000-00000000000000000005.deliverafterindex.tmp",
            "00000000000000000000.deliverafterindex",
            "0-5.deliverafterindex",
            "00000000000000000005-00000000000000000000.deliverafterindex",
            "00000000000000000005-00000000000000000005.deliverafterindex",
            "00000000000000000000-99999999999999999999.deliverafterindex",
            "00000000000000000000-00000000000000000005.0.deliverafterindex",
        ],
    )
    def test_nothing_else_is(self, name: str) -> None:
        assert names.parse_bucket_file(name) is None


class TestPositionFile:
    def test_it_lies_in_a_folder_of_the_group(self) -> None:
        assert Path("/data/t-0/subscriptions/g/position") == names.position_file(Path("/data/t-0"), "g")

    @pytest.mark.parametrize("group", NASTY, ids=ascii)
    def test_a_nasty_group_is_refused(self, group: str) -> None:
        with pytest.raises(InvalidTopic, match="cannot name a group"):
            names.position_file(Path("/data/t-0"), group)


class TestJournal:
    @given(OFFSETS)
    def test_what_is_built_is_parsed(self, number: int) -> None:
        assert number == names.parse_journal_file(names.journal_file(number))

    @pytest.mark.parametrize("name", ["", "position", "journal-1", f"journal-{0:020d}.tmp", f"journal-{2**63:020d}"])
    def test_what_is_not_ours(self, name: str) -> None:
        assert names.parse_journal_file(name) is None

    def test_the_folder(self) -> None:
        assert Path("/data/t-0/subscriptions/s") == names.subscription_folder(Path("/data/t-0"), "s")
        with pytest.raises(InvalidTopic):
            names.subscription_folder(Path("/data/t-0"), "../s")


class TestRemote:
    ATTEMPT = "0123456789abcdef" * 2

    @given(OFFSETS, st.sampled_from([names.LOG, names.DELIVER_AFTER_INDEX]))
    def test_what_is_built_is_parsed(self, base: int, suffix: str) -> None:
        folder, _, name = names.remote_segment_key("mail-0", base, self.ATTEMPT, suffix).partition("/")
        assert ("mail-0", (base, self.ATTEMPT, suffix)) == (folder, names.parse_remote_segment_file(name))

    @pytest.mark.parametrize(
        "name",
        [
            "", "manifest", f"1-{ATTEMPT}.log", f"{0:020d}-{ATTEMPT}", f"{0:020d}-{ATTEMPT[1:]}.log", f"{0:020d}.log",
            f"{2**63:020d}-{ATTEMPT}.log", f"{0:020d}-{ATTEMPT.upper()}.log", f"{0:020d}-{ATTEMPT}.log\n",
            f"{0:020d}-{ATTEMPT}.log/..", f"\u0663{0:019d}-{ATTEMPT}.log",
        ],
        ids=ascii,
    )  # fmt: skip
    def test_what_is_not_ours(self, name: str) -> None:
        assert names.parse_remote_segment_file(name) is None

    def test_attempts(self) -> None:
        assert names.is_attempt(self.ATTEMPT)
        for bad in ("", "0" * 31, "0" * 33, "g" * 32, "A" * 32, "0" * 32 + "\n"):
            assert not names.is_attempt(bad)

    def test_the_manifest(self) -> None:
        assert "mail-0/manifest" == names.manifest_key("mail-0")


class TestPrepared:
    ATTEMPT = "0123456789abcdef" * 2

    @given(
        st.text(st.sampled_from("aZ0._-"), min_size=1, max_size=120),
        OFFSETS,
        OFFSETS,
        st.sampled_from([names.PREPARED, names.HANDOVER]),
    )
    def test_what_is_built_is_parsed(self, job: str, batch: int, created_ms: int, suffix: str) -> None:
        assert names.is_job(job)
        name = names.prepared_file(job, batch, created_ms, self.ATTEMPT, suffix)
        assert (job, batch, created_ms, suffix) == names.parse_prepared_file(name)
        assert len(name) < 250

    @pytest.mark.parametrize(
        "name",
        [
            "", f"{0:020d}-{0:020d}-{ATTEMPT}.prepared", f"job-{2**63:020d}-{0:020d}-{ATTEMPT}.prepared",
            f"job-{0:020d}-{2**63:020d}-{ATTEMPT}.prepared", f"job-{0:020d}-{0:020d}-{ATTEMPT}.prepared.tmp",
            f"job-{0:020d}-{0:020d}-{ATTEMPT[1:]}.prepared", f"a/b-{0:020d}-{0:020d}-{ATTEMPT}.prepared",
            f"job-{0:020d}-{0:020d}-{ATTEMPT}.log",
        ],
    )  # fmt: skip
    def test_what_is_not_ours(self, name: str) -> None:
        assert names.parse_prepared_file(name) is None

    @pytest.mark.parametrize("name", ["", "a" * 121, "a/b", "a b", "\u0663", "a\n"], ids=ascii)
    def test_what_is_no_job(self, name: str) -> None:
        assert not names.is_job(name)
