"""Modules of the page that only reckon, asked in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from afterlog.server.running import Options
from tests.browser.conftest import LOCAL, served
from tests.browser.site import watched


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    options = Options(socket=False, listen=LOCAL, no_auth=True)
    with served(tmp_path_factory.mktemp("site"), options) as site, watched(browser, site.url) as watching:
        watching.page.goto(site.at("/"))
        yield watching.page


def asked(page: Page, module: str, expression: str) -> Any:
    """What an expression of the module `m` is."""
    return page.evaluate(f"import('/{module}').then(m => {expression})")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.count(1234567)", "1,234,567"),
        ("m.count(null)", "\u2013"),
        ("m.rate(0)", "0/s"),
        ("m.rate(0.25)", "0.3/s"),
        ("m.rate(1234.5)", "1,235/s"),
        ("m.rate(null)", "\u2013"),
        ("m.amount(0)", "0 B"),
        ("m.amount(1536)", "1.5 KiB"),
        ("m.amount(50 * 2 ** 30)", "50 GiB"),
        ("m.span(999)", "999 ms"),
        ("m.span(1500)", "1.5 s"),
        ("m.span(61_000)", "1 min 1 s"),
        ("m.span(86_400_000)", "1 d"),
        ("m.span(90 * 60_000)", "1 h 30 min"),
        ("m.relative(5_000, 1_000)", "in 4.0 s"),
        ("m.relative(1_000, 61_000)", "1 min ago"),
        ("m.until(1_000, 61_000)", "now"),
        ("m.moment(1_700_000_000_000)", "2023-11-14 23:13:20"),
        ("m.moment(1_700_000_000_123, 1)", "2023-11-14 23:13:20.123"),
        ("m.utc(1_700_000_000_123)", "2023-11-14 22:13:20.123 UTC"),
        ("m.moment(9e15)", "9000000000000000 ms"),
        ("m.fromLocalInput(m.localInput(1_700_000_000_000))", 1_700_000_000_000),
        ("m.fromLocalInput('')", None),
    ],
)
def test_how_numbers_and_instants_read(page: Page, expression: str, expected: object) -> None:
    assert expected == asked(page, "format.js", expression)


def test_rates_and_lateness_of_counters(page: Page) -> None:
    expression = """(() => {
        const counters = new m.Counters();
        const add = (now_ms, sent, up_to) =>
            counters.add({ now_ms, sent, became_due: 0, handed_out: up_to.at(-1), lateness_up_to: up_to });
        const told = [counters.lateness(0.5, [1, 10])];
        add(1_000, 100, [5, 5, 5]);
        told.push(counters.perSecond("sent"), counters.lateness(0.5, [1, 10]).ms);
        add(3_000, 300, [5, 9, 9]);
        told.push(counters.perSecond("sent"), counters.lateness(0.5, [1, 10]).ms, counters.curve("sent"));
        add(3_000, 300, [5, 9, 9]);
        add(5_000, 300, [5, 9, 19]);
        told.push(counters.perSecond("sent"), counters.lateness(0.99, [1, 10]), counters.curve("sent"));
        add(7_000, 3, [0, 0, 0]);
        told.push(counters.perSecond("sent"), counters.curve("sent"));
        return told;
    })()"""
    beyond = {"ms": 10, "beyond": True}
    expected = [None, None, 1, 100, 10, [100], 50, beyond, [100, 0], None, []]
    assert expected == asked(page, "rates.js", expression)


def test_marks_of_a_time_axis_lie_on_local_hours_and_days(page: Page) -> None:
    hour, midnight = 3_600_000, 1_700_002_800_000  # 2023-11-15 00:00 in Zurich
    expression = f"m.marks({midnight - hour}, {midnight + 5 * hour}, 4)"
    marks = asked(page, "time_axis.js", expression)
    assert [(midnight, "00:00"), (midnight + 2 * hour, "02:00")] == [(each["ms"], each["label"]) for each in marks[:2]]
    assert ["2023-11-15", "", ""] == [each["day"] for each in marks]
    days = asked(page, "time_axis.js", f"m.marks({midnight}, {midnight + 72 * hour}, 4)")
    assert ["2023-11-15", "2023-11-16", "2023-11-17"] == [each["label"] for each in days]


@pytest.mark.parametrize("span_ms", [1, 10, 999, 10**5, 10**9, 10**12, 10**14])
def test_marks_are_few(page: Page, span_ms: int) -> None:
    begin = 1_700_000_000_000
    marks = asked(page, "time_axis.js", f"m.marks({begin}, {begin + span_ms}, 8)")
    assert len(marks) <= 9
    assert all(begin <= each["ms"] < begin + span_ms for each in marks)


def test_bytes_as_text_json_and_hex(page: Page) -> None:
    assert "68 69 0a" in asked(page, "bytes.js", "m.asHex(m.bytesOf('hi\\n'))")
    assert "hi." in asked(page, "bytes.js", "m.asHex(m.bytesOf('hi\\n'))")
    assert "ff 00" == asked(page, "bytes.js", "m.inline({base64: '/wA='})")
    assert '{\n  "a": 1\n}' == asked(page, "bytes.js", """m.asJson(m.bytesOf('{"a":1}'))""")
    assert asked(page, "bytes.js", "m.asJson(m.bytesOf('{'))") is None
    assert asked(page, "bytes.js", "m.asJson(m.bytesOf({base64: '/wA='}))") is None
    assert asked(page, "bytes.js", "m.bytesOf(null)") is None
