"""`afterlog relay`: what it refuses before it asks any cluster. With one: tests/relay/brokers_lane.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from afterlog.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs bootstrap, inputs, group"),
        (["--bootstrap", "a:1", "--inputs", "x"], "needs group"),
        (["--bootstrap", "a:1", "--inputs", "x", "--group", "g", "--kafka", "nothing"], "NAME=VALUE"),
        (["--bootstrap", "a:1", "--inputs", "x", "--group", "g", "--names", "mine"], "names is one of"),
        (["--bootstrap", "a:1", "--inputs", "x", "--group", "g", "--trim-inputs", "--carry-after", "1d"], "either"),
        (["status", "--group", "g"], "needs bootstrap, inputs"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(cli, ["relay", *arguments])
    assert ran.exit_code == 2
    assert said in ran.output


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("group =")
    ran = CliRunner().invoke(cli, ["relay", "--config", str(file)])
    assert (2, True) == (ran.exit_code, "no TOML" in ran.output)
