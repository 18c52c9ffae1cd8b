"""What a worker tells is on the page, and the manifests of deploy/ start what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import prometheus_client
import yaml
from click.testing import CliRunner

from afterlog.cli.main import cli
from afterlog.relay import relay_metrics
from afterlog.relay.rectangle import Rectangle
from afterlog.relay.relay import PartitionStatus
from afterlog.relay.relay_measures import RelayMeasures
from afterlog.relay.relay_partition import DeliveryTurn
from afterlog.relay.relay_settings import read_settings
from tests.relay.simulation import scheduled

ROOT = Path(__file__).parent.parent.parent
ROW = PartitionStatus(
    topic="later", partition=3, state="live", error="", pending=7, next_due_ms=None, next_offset=9, lowest_offset=2,
    frontier_ms=5, intake_lag=0, delivered=1, late=0, refused=0, carried=0, cancelled=0, replaced=0, cancels_missed=0,
    rebuilt_s=0.5, goes_soon=False,
)  # fmt: skip


class Worker:
    """As much of a relay as a scrape asks for."""

    def __init__(self) -> None:
        self.measures = RelayMeasures()

    def status(self) -> list[PartitionStatus]:
        return [ROW]


def told(worker: Any) -> str:
    registry = prometheus_client.CollectorRegistry()
    relay_metrics.register(worker, registry)
    return prometheus_client.generate_latest(registry).decode()


def test_what_is_told_is_on_the_page() -> None:
    text = told(Worker())
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert names == set(re.findall(r"`(afterlog_relay_\w+)` \|", page))


def test_values() -> None:
    worker = Worker()
    worker.measures.transaction(0.015)
    turn = DeliveryTurn([], [], [scheduled(0, 100), scheduled(1, 160)], [], [], Rectangle.beginning(2), is_full=False)
    worker.measures.delivered(turn, 170)
    text = told(worker)
    assert 'afterlog_relay_pending{partition="3",topic="later"} 7.0' in text
    assert 'afterlog_relay_state{partition="3",state="live",topic="later"} 1.0' in text
    assert 'afterlog_relay_state{partition="3",state="stopped",topic="later"} 0.0' in text
    assert "afterlog_relay_next_due_ms{" not in text
    assert 'afterlog_relay_lateness_ms_bucket{le="10.0"} 1.0' in text
    assert 'afterlog_relay_lateness_ms_bucket{le="100.0"} 2.0' in text
    assert "afterlog_relay_lateness_ms_sum 80.0" in text
    assert 'afterlog_relay_transaction_seconds_bucket{le="0.02"} 1.0' in text


def test_the_manifests_start_the_command(tmp_path: Path) -> None:
    options = CliRunner().invoke(cli, ["relay", "--help"]).output
    for name in ("relay.yaml", "relay-compose.yaml"):
        text = (ROOT / "deploy" / name).read_text("utf-8")
        documents = [*yaml.safe_load_all(text)]
        assert documents
        asked = set(re.findall(r"--(?:config|name|metrics|bootstrap|inputs|group)\b(?=, )", text))
        assert asked
        assert not {each for each in asked if each not in options}
    [settings] = [each for each in documents_of("relay.yaml") if each["kind"] == "ConfigMap"]
    file = tmp_path / "relay.toml"
    file.write_text(settings["data"]["relay.toml"])
    assert read_settings(file).inputs == ("later",)


def documents_of(name: str) -> list[Any]:
    return [*yaml.safe_load_all((ROOT / "deploy" / name).read_text("utf-8"))]
