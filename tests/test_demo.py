"""The demo in small: it delivers and checks, and would say so if a promise were broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from examples.flights import Flights, Received, check, main

FLIGHTS = Flights(value=[b"a", b"b", b"c"], key=[b"k"] * 3, departure_ms=np.array([30, 10, 10]))
RECEIVED = Received(
    offset=np.array([1, 2, 0]), due=np.array([10, 10, 30]), receipt_ms=np.array([10, 11, 40]), value=b"bca"
)


def test_a_few_thousand_flights(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    arguments = ["--seconds", "0.5", "--limit", "3000", "--folder", str(folder)]
    result = CliRunner().invoke(main, arguments)
    assert 0 == result.exit_code, result.output
    assert "appended 3,000 flights, shuffled" in result.output
    assert 5 == result.output.count("ok  ")
    assert "every flight once: 3,000 of 3,000" in result.output
    assert "2013-12" in result.output
    assert (folder / "topics").exists()


def test_a_folder_of_something_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    result = CliRunner().invoke(main, ["--folder", str(tmp_path)])
    assert 2 == result.exit_code
    assert "it is not removed" in result.output
    assert (tmp_path / "thesis.txt").exists()


def kept(received: Received) -> list[bool]:
    return [one.kept for one in check(FLIGHTS, received, speed=1.0)]


def test_what_is_right_is_right() -> None:
    assert [True] * 5 == kept(RECEIVED)


@pytest.mark.parametrize(
    ("broken", "received"),
    [
        (0, Received(RECEIVED.offset[:2], RECEIVED.due[:2], RECEIVED.receipt_ms[:2], b"bc")),
        (0, replace(RECEIVED, offset=np.array([1, 2, 2]))),
        (1, replace(RECEIVED, value=b"bcx")),
        (2, replace(RECEIVED, receipt_ms=np.array([9, 11, 40]))),
        (2, replace(RECEIVED, due=np.array([10, 10, 31]))),
        (3, Received(np.array([2, 1, 0]), RECEIVED.due, RECEIVED.receipt_ms, b"cba")),
        (3, Received(np.array([0, 1, 2]), np.array([30, 10, 10]), np.array([40, 40, 40]), b"abc")),
    ],
)
def test_the_checks_see(broken: int, received: Received) -> None:
    assert not kept(received)[broken]
