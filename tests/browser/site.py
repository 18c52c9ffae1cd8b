"""A served store for the browser, and what each test asks of a page: no error, no violation, nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, Page, Request, ViewportSize, expect

from afterlog.store.store import Store

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
ZONE = "Europe/Zurich"
PHONE = ViewportSize(width=360, height=760)
DESK = ViewportSize(width=1280, height=900)
HOUR_MS = 3_600_000
PATIENCE_MS = 30_000

PARTS = ("/", "/topics/mail", *(f"/topics/mail/{part}" for part in ("records", "subscriptions", "partitions")))
EVERYWHERE = (*PARTS, "/topics/mail.dead/dead-letters", "/schedules")
BUTTON = "button"

_WATCH = "addEventListener('securitypolicyviolation', event => console.error('refused: ' + event.violatedDirective))"


class Site:
    """A store and its server."""

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url

    def at(self, fragment: str) -> str:
        """The address of a part of the page: `/topics/mail`."""
        return f"{self.url}/#{fragment}"


class Watched:
    """A page under observation. complaints: what its console said, what failed in it, what it asked of others."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._host = urlsplit(url).netloc
        page.on("console", lambda message: message.type in ("error", "warning") and self._complain(message.text))
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("request", self._note)
        page.add_init_script(_WATCH)

    def _complain(self, text: str) -> None:
        self.complaints.append(text)

    def _note(self, request: Request) -> None:
        asked = urlsplit(request.url)
        self.asked.append(f"{request.method} {asked.path}")
        if asked.netloc != self._host and asked.scheme != "data":
            self._complain(f"asked {request.url}")


@contextmanager
def watched(browser: Browser, url: str, *, allowed: str | None = None, **context: Any) -> Iterator[Watched]:
    """A page of its own, without cookies and storage of before; it may not complain, but of what has `allowed`."""
    options = {"viewport": DESK, "timezone_id": ZONE, "locale": "en-GB", **context}
    with browser.new_context(**options) as made:
        made.set_default_timeout(PATIENCE_MS)
        page = Watched(made.new_page(), url)
        yield page
        assert [] == [text for text in page.complaints if allowed is None or allowed not in text]


def shown_bars(page: Page) -> list[float]:
    """The heights of the bars that are there, from left to right."""
    script = "all => all.map(each => Number(each.getAttribute('height')))"
    heights: list[float] = page.locator(".plot rect.bar-of-records, .plot rect.chosen").evaluate_all(script)
    return heights


def shown_span(page: Page) -> tuple[datetime, datetime]:
    """From when to when the histogram goes."""
    first, last = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.locator(".histogram .span").inner_text())
    return datetime.fromisoformat(first), datetime.fromisoformat(last)


def seconds(page: Page) -> float:
    first, last = shown_span(page)
    return (last - first).total_seconds()


@contextmanager
def another_span(page: Page) -> Iterator[None]:
    """What is done in its block changes it."""
    before = page.locator(".histogram .span").inner_text()
    yield
    expect(page.locator(".histogram .span")).not_to_have_text(before)


def local(ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(ms / 1_000, ZoneInfo(ZONE)).strftime(form)


def opened(watching: Watched, site: Site, fragment: str) -> Page:
    """Once it shows what it has asked for."""
    watching.page.goto(site.at(fragment))
    expect(watching.page.locator("#connection")).to_have_text("live")
    return watching.page


def wait_for_another_look(page: Page) -> None:
    with page.expect_response(lambda response: re.search("/v1/(overview|schedules)", response.url) is not None):
        pass
