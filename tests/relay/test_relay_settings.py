from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from afterlog.base.errors import InvalidArgument, WrongType
from afterlog.relay.instruction import KNOWN_NAMES
from afterlog.relay.relay_settings import RelaySettings, read_settings

GIVEN: dict[str, Any] = {"bootstrap": "localhost:9092", "inputs": ("later",), "group": "relays"}


def test_its_own_topics_begin_with_the_group() -> None:
    settings = RelaySettings(**GIVEN)
    assert ("relays.dead", "relays.frontier") == (settings.dead_letter_topic, settings.frontier_topic)
    assert ["later"] == settings.read_topics
    assert ["later", "relays.carry"] == RelaySettings(**GIVEN, carry_after_ms=5).read_topics


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(
        'bootstrap = "a:1"\ninputs = ["x", "y"]\ngroup = "g"\nnames = "etf1"\nmax_delay = "90d"\ntick = "50ms"\n'
        'cache = "/var/cache/relay"\n[kafka]\n"security.protocol" = "SASL_SSL"\n'
    )
    settings = read_settings(file, bootstrap="b:2", group=None)
    assert ("b:2", ("x", "y"), "g") == (settings.bootstrap, settings.inputs, settings.group)
    assert (KNOWN_NAMES["etf1"], 90 * 86_400_000, 50) == (settings.names, settings.max_delay_ms, settings.tick_ms)
    assert (Path("/var/cache/relay"), {"security.protocol": "SASL_SSL"}) == (settings.cache, settings.kafka)


def test_names_in_a_table(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text('[names]\nlike = "etf1"\ndeliver_after = "when"\n')
    settings = read_settings(file, **GIVEN)
    assert ("when", "scheduler-target-topic") == (settings.names.deliver_after, settings.names.deliver_to)


def test_settings_of_one_client_alone() -> None:
    kafka = {"security.protocol": "SSL", "consumer.session.timeout.ms": "6000", "producer.linger.ms": "1"}
    settings = RelaySettings(**GIVEN, kafka=kafka)
    assert "linger.ms" not in settings.client("consumer")
    assert settings.client("consumer")["session.timeout.ms"] == "6000"
    assert settings.client("producer")["linger.ms"] == "1"
    assert {"security.protocol": "SSL"}.items() <= settings.client("admin").items()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inputs": ()}, "inputs"),
        ({"inputs": ("a", "a")}, "once"),
        ({"group": ""}, "group"),
        ({"on_invalid": "explode"}, "on_invalid"),
        ({"timestamps": "mine"}, "timestamps"),
        ({"tick_ms": 0}, "tick_ms"),
        ({"batch": -1}, "batch"),
        ({"trim_inputs": True, "carry_after_ms": 5}, "either"),
        ({"kafka": {"isolation.level": "read_uncommitted"}}, "sets these itself"),
        ({"kafka": {"producer.transactional.id": "x"}}, "sets these itself"),
        ({"kafka": {"consumer.partition.assignment.strategy": "range"}}, "sets these itself"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        RelaySettings(**{**GIVEN, **given})


def test_types() -> None:
    for given in ({"inputs": "later"}, {"inputs": [1]}, {"allowed_targets": "x"}):
        with pytest.raises(WrongType):
            RelaySettings(**{**GIVEN, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group = ", "no TOML"),
        ("grop = 'x'\n", "no setting grop"),
        ("names = 'kafkaesque'\n", "names is one of"),
        ("max_delay = 'long'\n", "duration"),
        ("[names]\nwhen = 'x'\n", "there is no when"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        read_settings(file, **GIVEN)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgument, match="needs inputs, group"):
        read_settings(None, bootstrap="a:1", inputs=(), group=None)
