"""Tokens: kept hashed, seen when the file changes, and nothing that a broken file lets in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import afterlog
from afterlog.api.operation import Scope
from afterlog.base.errors import CorruptFile, InvalidArgument, NotAuthenticated
from afterlog.base.files import publish
from afterlog.server.exchange import Peer
from afterlog.server.running import Options, Serving
from afterlog.server.tokens import Authenticator, TokenFile, hashed
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.server.support import OWNER, STRANGER, TurnedClock
from tests.support import NOW_MS, PATH, content, flipped

FILE = PATH / "tokens.json"


@pytest.fixture
def disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(PATH)
    return files


def bearer(text: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {text}".encode()}


class TestFile:
    def test_a_token_is_in_it_by_its_hash_alone(self, disk: SimulatedFiles) -> None:
        text = TokenFile(disk, FILE).add("worker", [Scope.RECEIVE, Scope.LOOK], ["mail", "sms."])
        data = content(disk, FILE)
        assert text.encode() not in data
        assert hashed(text).encode() in data
        [token] = TokenFile(disk, FILE).read()
        assert ("worker", hashed(text)) == (token.name, token.sha256)
        assert {Scope.RECEIVE: ("mail", "sms."), Scope.LOOK: ("mail", "sms.")} == token.scopes

    def test_no_two_are_the_same(self, disk: SimulatedFiles) -> None:
        texts = {TokenFile(disk, FILE).add(f"t{number}", [Scope.LOOK], []) for number in range(20)}
        assert 20 == len(texts)
        assert all(len(text) == len("afterlog_") + 43 for text in texts)

    def test_names_and_scopes_that_cannot_be(self, disk: SimulatedFiles) -> None:
        file = TokenFile(disk, FILE)
        file.add("a", [Scope.LOOK], [])
        for name, scopes in (("a", [Scope.LOOK]), ("no name", [Scope.LOOK]), ("", [Scope.LOOK]), ("b", [])):
            with pytest.raises(InvalidArgument):
                file.add(name, scopes, [])
        with pytest.raises(InvalidArgument, match="no token 'b'"):
            file.remove("b")
        file.remove("a")
        assert [] == file.read()

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"tokens": 5}, {"tokens": [5]}, {"tokens": [{}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64}]},
            {"tokens": [{"name": "a", "sha256": "0" * 63, "scopes": {}}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": {"fly": [""]}}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": {"look": [5]}}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": {}, "colour": "red"}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": {}, "expires_ms": None}]},
            {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": {}, "expires_ms": -1}]},
        ],
    )  # fmt: skip
    def test_what_is_no_file_of_tokens(self, disk: SimulatedFiles, body: Any) -> None:
        from afterlog.base import document

        publish(disk, FILE, [document.encode("afterlog-tokens", 1, body)])
        with pytest.raises(CorruptFile, match="no tokens"):
            TokenFile(disk, FILE).read()
        publish(disk, FILE, [json.dumps(body).encode()])
        with pytest.raises(CorruptFile):
            TokenFile(disk, FILE).read()


class TestWhoAsks:
    def test_by_token_and_by_peer(self, disk: SimulatedFiles) -> None:
        file = TokenFile(disk, FILE)
        text = file.add("worker", [Scope.LOOK], ["mail"])
        who = Authenticator(file, TurnedClock(NOW_MS))
        assert ("token worker", {Scope.LOOK: ("mail",)}) == who(STRANGER, bearer(text))
        assert ("token worker", {Scope.LOOK: ("mail",)}) == who(OWNER, bearer(text))  # a token says less
        assert set(Scope) == set(who(OWNER, {}).scopes)
        for peer in (STRANGER, Peer("user 7", trusted=False, tcp=False)):
            with pytest.raises(NotAuthenticated):
                who(peer, {})
        for header in (b"Bearer", b"Bearer x", b"Basic " + text.encode(), text.encode(), b""):
            with pytest.raises(NotAuthenticated):
                who(OWNER, {b"authorization": header})

    def test_anybody_where_that_was_asked_for(self) -> None:
        assert set(Scope) == set(Authenticator(None, TurnedClock(NOW_MS), anybody=True)(STRANGER, {}).scopes)

    def test_changes_are_seen_within_a_second(self, disk: SimulatedFiles) -> None:
        file, clock = TokenFile(disk, FILE), TurnedClock(NOW_MS)
        first = file.add("first", [Scope.LOOK], [])
        who = Authenticator(file, clock)
        second = file.add("second", [Scope.LOOK], [])
        file.remove("first")
        clock.advance(1_000)
        assert "token second" == who(STRANGER, bearer(second)).name
        with pytest.raises(NotAuthenticated):
            who(STRANGER, bearer(first))
        disk.unlink(FILE)
        clock.advance(1_000)
        with pytest.raises(NotAuthenticated):
            who(STRANGER, bearer(second))

    def test_one_that_expires(self, disk: SimulatedFiles) -> None:
        file, clock = TokenFile(disk, FILE), TurnedClock(NOW_MS)
        text = file.add("guest", [Scope.LOOK], [], expires_ms=NOW_MS + 5_000)
        who = Authenticator(TokenFile(disk, FILE), clock)
        clock.advance(4_999)
        assert "token guest" == who(STRANGER, bearer(text)).name
        clock.advance(1)
        with pytest.raises(NotAuthenticated, match="token guest has expired"):
            who(STRANGER, bearer(text))
        again = file.rotate("guest", expires_ms=NOW_MS + 9_000)
        clock.advance(1_000)
        assert "token guest" == who(STRANGER, bearer(again)).name
        clock.advance(3_000)
        with pytest.raises(NotAuthenticated, match="expired"):
            who(STRANGER, bearer(again))
        assert [NOW_MS + 9_000] == [token.expires_ms for token in file.read()]

    def test_a_file_that_rots_lets_nobody_in(self, disk: SimulatedFiles) -> None:
        file, clock = TokenFile(disk, FILE), TurnedClock(NOW_MS)
        text = file.add("worker", [Scope.LOOK], [])
        who = Authenticator(file, clock)
        data = content(disk, FILE)
        publish(disk, FILE, [flipped(data, len(data) - 5)])
        clock.advance(1_000)
        for _ in range(2):
            with pytest.raises(NotAuthenticated):
                who(STRANGER, bearer(text))
            clock.advance(1_000)
        publish(disk, FILE, [data])
        clock.advance(1_000)
        assert "token worker" == who(STRANGER, bearer(text)).name


def test_a_file_that_is_not_there_is_said_before_it_listens(tmp_path: Path) -> None:
    options = Options(listen=("127.0.0.1", 0), tokens=tmp_path / "missing.json")
    with (
        afterlog.open(tmp_path / "data") as store,
        pytest.raises(InvalidArgument, match="tokens add makes it"),
    ):
        Serving(store, options)
