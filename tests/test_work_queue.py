from __future__ import annotations

from pathlib import Path

import pytest

from examples.work_queue import run


def test_everything_is_sent_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = [b"good-1", b"good-2", b"flaky-1", b"gone"]
    assert sorted(addresses) == sorted(run(str(tmp_path), addresses).sent)
    assert "b'gone' failed 4 times: LookupError: no such address" in capsys.readouterr().out
