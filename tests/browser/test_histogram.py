"""The histogram: all that is pending, zoomed by pointer and by keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import Site, another_span, opened, seconds, shown_bars, shown_span, watched


def test_all_that_is_pending_is_in_it(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail")
        page.get_by_text("As a table").click()
        cells = page.locator("details tbody td.number").all_inner_texts()
        assert 400 == sum(int(cell.replace(",", "")) for cell in cells)
        assert len(cells) == sum(height > 0 for height in shown_bars(page))


def test_zoom_by_pointer(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail")
        every = seconds(page)
        plot = page.locator(".plot").bounding_box()
        assert plot is not None
        left, middle = plot["x"] + 300, plot["y"] + plot["height"] / 2
        with another_span(page):
            page.mouse.move(left, middle)
            page.mouse.down()
            page.mouse.move(left + 200, middle, steps=5)
            page.mouse.up()
        expect(page.locator(".tip")).to_contain_text("From ")
        drawn = seconds(page)
        width = plot["width"] - 76  # without its margins
        assert every * 200 / width == pytest.approx(drawn, rel=0.02)
        with another_span(page):
            page.mouse.dblclick(left, middle)
        assert 2 * drawn == pytest.approx(seconds(page), rel=0.02)
        with another_span(page):
            page.get_by_role("button", name="Later").click()
        assert 2 * drawn == pytest.approx(seconds(page), rel=0.02)
        with another_span(page):
            page.get_by_role("button", name="All").click()
        assert every == pytest.approx(seconds(page), rel=0.02)


def test_zoom_by_keys(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail")
        before, plot = shown_span(page), page.get_by_role("application")
        plot.focus()
        page.keyboard.press("Home")
        told = page.locator(".tip").inner_text()
        assert re.search(r"until .*: [\d,]+ records?$", told)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).not_to_have_text(told)
        chosen = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.locator(".tip").inner_text())
        page.keyboard.press("Enter")
        expect(page.locator(".histogram .span")).to_have_text(f"{chosen[0]} until {chosen[1]}")
        page.keyboard.press("PageDown")
        expect(page.locator(".histogram .span")).not_to_contain_text(chosen[0])
        first = seconds(page)
        with another_span(page):
            page.keyboard.press("-")
        assert 2 * first == pytest.approx(seconds(page), abs=2)
        page.keyboard.press("0")
        expect(page.locator(".histogram .span")).to_contain_text(before[1].strftime("%Y-%m-%d %H:%M"))


def test_from_a_bar_to_its_records(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail")
        expect(page.get_by_role("button", name="Records from here")).to_be_disabled()
        page.get_by_role("application").focus()
        page.keyboard.press("End")
        begin = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.locator(".tip").inner_text())[0]
        page.get_by_role("button", name="Records from here").click()
        expect(page.get_by_role("heading", name="Records")).to_be_visible()
        expect(page.locator("tbody time").first).to_be_visible()
        times = page.locator("tbody time").all_inner_texts()
        assert times == sorted(times)
        assert times[0] >= begin
