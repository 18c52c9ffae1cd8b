"""The pictures of the page in docs/: `python -m tests.browser.pictures`. Of a store that is at work for a while."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, expect, sync_playwright

import afterlog
from afterlog.server.running import Options, Serving
from afterlog.store.store import Store
from tests.browser.site import ARGUMENTS, CHROMIUM, DESK, HOUR_MS, PHONE, ZONE

FOLDER = Path(__file__).parent.parent.parent / "docs" / "images"
DAY_MS = 24 * HOUR_MS
RECORDS = 60_000
PICTURES = (
    ("page-topics", "/", {"viewport": DESK, "color_scheme": "light"}),
    ("page-schedule", "/topics/mail", {"viewport": DESK, "color_scheme": "dark"}),
    ("page-dead-letters", "/topics/mail.dead/dead-letters", {"viewport": DESK, "color_scheme": "light"}),
    ("page-phone", "/topics/mail", {"viewport": PHONE, "color_scheme": "light"}),
)
WORKED_FOR_MS = 20_000


def fill(store: Store) -> None:
    """Reminders of a week, most in the morning and in the evening, and a few topics beside."""
    random, now_ms = np.random.default_rng(7), store.now_ms()
    store.create_topic("mail.reminders", partitions=4)
    store.create_topics(["mail", "mail.dead", "billing.invoices", "calls", "push.eu", "push.us"])
    store.create_topic("audit", delayed=False)
    hours = np.concatenate([random.normal(8, 2, RECORDS // 2), random.normal(18, 1.5, RECORDS // 2)])
    due = now_ms - now_ms % DAY_MS + random.integers(0, 7, RECORDS) * DAY_MS + (hours * HOUR_MS).astype(np.int64)
    letters = ({"to": f"user-{row}@example.org", "subject": "How was your week?"} for row in range(RECORDS))
    values = [json.dumps(letter).encode() for letter in letters]
    keys = [b"user-%d" % (row % 5_000) for row in range(RECORDS)]
    due += np.where(due < now_ms + 60_000, 7 * DAY_MS, 0)
    store.send_many("mail", values, keys=keys, deliver_after=due)
    for topic, count in (("mail.reminders", 12_431), ("billing.invoices", 873), ("calls", 41), ("push.eu", 2_210)):
        after_ms = random.integers(60_000, 3 * DAY_MS, count)
        store.send_many(topic, values[:count], keys=keys[:count], deliver_after=now_ms + after_ms)
    store.send_many("audit", values[:300])
    store.send_many("calls", [b"busy"] * 3)


def work(store: Store, stopped: threading.Event) -> None:
    """Some are sent for soon, all that is due is received; three calls fail for good."""
    random = np.random.default_rng(8)
    retry = afterlog.RetryPolicy(first_ms=100, factor=2.0, max_ms=1_000, jitter=0.1, attempts=3)
    with store.subscribe("mail", "sender") as sender, store.subscribe(
        "calls", "caller", retry=retry, dead_letter="mail.dead"
    ) as caller:  # fmt: skip
        while not stopped.wait(0.05):
            for _ in range(int(random.integers(0, 5))):
                store.send("mail", b"soon", key=b"user-1", delay=float(random.uniform(0.1, 2)))
            sender.ack_many(sender.receive(1_000))
            for message in caller.receive(10):
                caller.nack(message, reason="ConnectionRefusedError: [Errno 111] Connection refused")


def take(browser: Browser, url: str, name: str, fragment: str, options: dict[str, Any]) -> None:
    with browser.new_context(timezone_id=ZONE, locale="en-GB", **options) as context:
        page = context.new_page()
        page.goto(f"{url}/#{fragment}")
        expect(page.locator("#connection")).to_have_text("live")
        page.wait_for_timeout(WORKED_FOR_MS)
        if fragment == "/topics/mail":
            page.get_by_role("application").focus()
            page.keyboard.press("Home")
            for _ in range(20):
                page.keyboard.press("ArrowRight")
            if options["viewport"] == PHONE:
                page.locator(".parts").evaluate("parts => parts.scrollIntoView()")
        page.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, afterlog.open(folder) as store, sync_playwright() as playwright:
        fill(store)
        serving = Serving(store, Options(socket=False, listen=("127.0.0.1", 0), no_auth=True))
        serving.start()
        stopped = threading.Event()
        worker = threading.Thread(target=work, args=(store, stopped))
        worker.start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            for name, fragment, options in PICTURES:
                take(browser, serving.addresses[0], name, fragment, options)
        finally:
            browser.close()
            stopped.set()
            worker.join()
            serving.stop()
            serving.join()


if __name__ == "__main__":
    main()
