"""What deploy/ has: the dashboard asks for metrics that there are, the others start what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from afterlog.base.clock import ManualClock
from afterlog.cli.main import cli
from afterlog.metrics import StoreCollector
from afterlog.server.served import Served
from afterlog.store.store import open_store
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, PATH, small

DEPLOY = Path(__file__).parent.parent / "deploy"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    with open_store(PATH, small(), ManualClock(NOW_MS), SimulatedFiles(), background=False) as store:
        known = {metric.name for metric in StoreCollector(store).describe()}
        known |= set(re.findall(r"^# TYPE (\S+)", Served(store).counted(), re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))["panels"]
    asked = {
        name for panel in panels for each in panel["targets"] for name in re.findall(r"afterlog_\w+", each["expr"])
    }
    assert asked
    assert not {name for name in asked if name.removesuffix("_bucket") not in known and name not in known}


def test_unit_and_image_start_the_command() -> None:
    options = CliRunner().invoke(cli, ["serve", "--help"]).output
    for name in ("afterlog.service", "Dockerfile"):
        text = (DEPLOY / name).read_text("utf-8")
        assert "serve" in text
        assert "SIGTERM" in text
        for option in re.findall(r"\s(--(?:listen|tokens|tls-cert|tls-key|backups|name))\b", text):
            assert option in options
    extras = re.findall(r"afterlog\[([\w,]+)\]", (DEPLOY / "Dockerfile").read_text("utf-8"))
    declared = (DEPLOY.parent / "setup.cfg").read_text("utf-8")
    for extra in extras[0].split(","):
        assert f"\n{extra} =" in declared
