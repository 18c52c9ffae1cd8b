"""`afterlog replicate`: stores in folders and behind servers, once and until SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import afterlog
from tests.cli.test_serve_command import PROGRAM, run, served
from tests.support import PATIENCE_S


def sent(data: Path, *values: bytes) -> None:
    with afterlog.open(data) as store:
        store.create_topic("t")
        store.send_many("t", [*values])


def values(data: Path) -> list[bytes]:
    with afterlog.open(data) as store, store.consumer("t", group="g") as consumer:
        return sorted(message.value or b"" for message in consumer.poll(100))


def test_once(tmp_path: Path) -> None:
    sent(tmp_path / "eu", b"a", b"b")
    sent(tmp_path / "us", b"c")
    out = run("replicate", f"eu={tmp_path / 'eu'}", f"us={tmp_path / 'us'}", "--once").output
    assert ["eu", "us", "t-0", "0", "0.0"] == out.splitlines()[-2].split()
    assert [b"a", b"b", b"c"] == values(tmp_path / "eu") == values(tmp_path / "us")
    out = run("replicate", tmp_path / "eu", tmp_path / "us", "--once", "--json").output
    assert 0 == json.loads(out.splitlines()[-1])["records"]


def test_once_takes_acks_along(tmp_path: Path) -> None:
    sent(tmp_path / "eu", b"a", b"b")
    with afterlog.open(tmp_path / "eu") as store, store.subscribe("t", "s", replicated=True) as subscription:
        subscription.ack(subscription.receive(1)[0])
    with afterlog.open(tmp_path / "us"):
        pass
    run("replicate", tmp_path / "eu", tmp_path / "us", "--once")
    with afterlog.open(tmp_path / "us") as store, store.subscribe("t", "s") as subscription:
        assert [b"b"] == [message.value for message in subscription.receive(10, timeout=0)]


def test_what_cannot_go_on_is_told(tmp_path: Path) -> None:
    sent(tmp_path / "eu", b"a")
    with afterlog.open(tmp_path / "us") as store:
        store.create_topic("t", delayed=False)
    out = run("replicate", tmp_path / "eu", tmp_path / "us", "--once", code=1).output
    assert "t does not go on" in out
    assert "another kind of topic" in out


def test_one_cluster_is_too_few(tmp_path: Path) -> None:
    sent(tmp_path / "eu", b"a")
    assert "two clusters" in run("replicate", tmp_path / "eu", code=2).output


def test_until_sigterm(tmp_path: Path) -> None:
    sent(tmp_path / "eu", b"a")
    with afterlog.open(tmp_path / "us"):
        pass
    with served(tmp_path / "us"):
        where = f"us=unix:{tmp_path / 'us' / 'server.sock'}"
        command = [sys.executable, "-W", "error", "-c", PROGRAM, "replicate", f"eu={tmp_path / 'eu'}", where]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            said = ""
            while "replicating: eu, us" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            with afterlog.connect(tmp_path / "us") as store:
                while [topic.name for topic in store.topics()] != ["t"]:
                    pass
                with store.consumer("t", group="g") as consumer:
                    assert [b"a"] == [message.value for message in consumer.poll(1, timeout=PATIENCE_S)]
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(PATIENCE_S), process.stderr.read()
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            process.stderr.close()
