"""A share of the campaign of `tests/campaigns/killed_clients.py`, and what its oracle has to see."""

from __future__ import annotations

import pytest

from tests import campaigns
from tests.campaigns.killed_client import BUGS
from tests.campaigns.killed_clients import campaign
from tests.campaigns.killed_oracle import Lies
from tests.campaigns.killed_proxy import Requests, may_come_again, sent_values

SEEDS = 3
"""A bug need not show under each of them."""
KILLS = 200 if campaigns.WHOLE else 6 * campaigns.DEPTH


def _request(path: str, body: bytes = b"") -> bytes:
    head = f"POST /v1/topics/mail/{path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def test_promises_hold_whoever_is_killed() -> None:
    report = campaign(KILLS, seed=campaigns.SEED, pause_s=0.1)
    campaigns.count("kills of processes that share a store", report.kills)
    assert 0 < len(report.takeovers_s) <= report.kills
    assert report.records > 0
    assert all(count > 0 for count in report.asked.values())
    assert report.again.total() > 0


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug != "none"])
@pytest.mark.share(3)
def test_planted_bug_is_caught(bug: str) -> None:
    """The first lie that can be seen ends it: as a rule after a kill or two, of forty."""

    def told() -> None:
        for seed in range(SEEDS):
            campaign(40, seed=seed, bug=bug, pause_s=0.05)

    with pytest.raises(Lies):
        told()


class TestRequests:
    SEND = _request("records", b'{"records":[{"value":"x"}],"producer":{"id":1,"epoch":0,"sequence":0}}')
    ACK = _request("subscriptions/s/ack", b'{"receipts":["0.0.0.0"]}')

    @pytest.mark.parametrize("piece", [1, 7, 1_000])
    def test_found_in_pieces_of_any_size(self, piece: int) -> None:
        told, found = self.SEND + _request("stats") + self.ACK, Requests()
        pieces = [told[at : at + piece] for at in range(0, len(told), piece)]
        assert [self.SEND, _request("stats"), self.ACK] == [each for data in pieces for each in found.said(data)]
        assert found.between
        assert [] == [*found.said(self.ACK[:-1])]
        assert not found.between

    def test_only_what_does_no_harm_comes_again(self) -> None:
        assert may_come_again(self.SEND)
        assert may_come_again(self.ACK)
        assert ["x"] == sent_values(self.SEND)
        for path in ("cancel", "reschedule", "subscriptions/s/nack", "subscriptions/s/receive"):
            assert not may_come_again(_request(path, b"{}"))
        assert not may_come_again(_request("records", b'{"records":[{"value":"x","unique_key":"k"}]}'))
