"""Records found, looked at, cancelled, rescheduled."""

from __future__ import annotations

import json

from playwright.sync_api import Browser, expect

from tests.browser.site import BUTTON, HOUR_MS, Site, local, opened, watched


def test_find_by_key_and_look_at_one(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_label("Key").fill("user-7")
        page.get_by_role("button", name="Find").click()
        wanted = [record for record in site.store.pending("mail", limit=1_000) if record.key == b"user-7"]
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(len(wanted))
        rows.get_by_role(BUTTON).first.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"Record {wanted[0].id}")
        expect(dialog).to_contain_text(local(wanted[0].due))
        value = wanted[0].value or b""
        shown = dialog.locator("pre")
        assert json.loads(value) == json.loads(shown.inner_text())
        dialog.get_by_role("button", name="Text").click()
        expect(shown).to_have_text(value.decode())
        dialog.get_by_role("button", name="Hex").click()
        expect(shown).to_contain_text(value[:4].hex(" "))
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(rows.get_by_role(BUTTON).first).to_be_focused()


def test_find_what_is_due(browser: Browser, site: Site) -> None:
    for number in range(60):
        site.store.send("mail", b"due %d" % number, partition=0)
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_label("State").select_option("due")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("tbody tr")).to_have_count(50)
        expect(page.locator("tbody tr").last).to_contain_text("due 59")
        page.locator("tbody").get_by_role(BUTTON).last.click()
        expect(page.get_by_role("dialog")).to_contain_text("due")
        expect(page.get_by_role("button", name="Cancel it…")).to_have_count(0)


def test_page_by_page(browser: Browser, site: Site) -> None:
    ids = [str(record.id) for record in site.store.pending("mail", limit=120)]
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        first = page.locator("tbody tr th").first
        expect(first).to_have_text(ids[0])
        page.get_by_role("button", name="Next page").click()
        expect(first).to_have_text(ids[50])
        page.get_by_role("button", name="Next page").click()
        expect(first).to_have_text(ids[100])
        page.get_by_role("button", name="Previous page").click()
        expect(first).to_have_text(ids[50])
        page.get_by_role("button", name="First page").click()
        expect(first).to_have_text(ids[0])


def test_bytes_and_headers(browser: Browser, site: Site) -> None:
    record = site.store.send("mail", b"\x00\xff\x80", headers=[("trace", b"\xfe"), ("who", b"me")], delay=60)
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_label("Id").fill(str(record))
        page.get_by_role("button", name="Open").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator("pre")).to_contain_text("00 ff 80")
        expect(dialog.get_by_role("button", name="Text")).to_be_disabled()
        expect(dialog.get_by_role("row", name="who me")).to_be_visible()
        expect(dialog.get_by_role("row", name="trace fe")).to_be_visible()


def test_cancel_asks_first(browser: Browser, site: Site) -> None:
    record = site.store.pending("mail", limit=1)[0]
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_role("button", name=str(record.id), exact=True).click()
        page.get_by_role("button", name="Cancel it…").click()
        question = page.get_by_role("dialog", name="Cancel this record?")
        expect(question.get_by_role("button", name="Keep it as it is")).to_be_focused()
        page.keyboard.press("Enter")
        expect(question).to_have_count(0)
        assert record.id == site.store.pending("mail", limit=1)[0].id
        page.get_by_role("button", name="Cancel it…").click()
        page.keyboard.press("Escape")
        assert record.id == site.store.pending("mail", limit=1)[0].id
        page.get_by_role("button", name="Cancel it…").click()
        question.get_by_role("button", name="Cancel the record").click()
        expect(page.locator(".done")).to_have_text(f"{record.id} is cancelled: it will not be delivered.")
        expect(page.locator(".done")).to_be_focused()
        expect(page.get_by_role("button", name=str(record.id), exact=True)).to_have_count(0)
        assert record.id not in [each.id for each in site.store.pending("mail", limit=1_000)]
        assert 1 == watching.asked.count("POST /v1/topics/mail/cancel")
        page.get_by_label("Id").fill(str(record.id))
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("dialog")).to_contain_text("cancelled")


def test_reschedule(browser: Browser, site: Site) -> None:
    record = site.store.pending("mail", limit=1)[0]
    due_ms = (record.due // 1_000) * 1_000 + 48 * HOUR_MS
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_role("button", name=str(record.id), exact=True).click()
        page.get_by_role("button", name="Reschedule…").click()
        page.get_by_label("Due at, in your time zone").fill(local(due_ms, "%Y-%m-%dT%H:%M:%S"))
        page.get_by_role("button", name="Reschedule", exact=True).click()
        expect(page.locator(".done")).to_contain_text(f"Rescheduled to {local(due_ms)}. Its id is now mail-")
    [again] = [each for each in site.store.pending("mail", limit=1_000) if each.value == record.value]
    assert (due_ms, record.key) == (again.due, again.key)


def test_too_late(browser: Browser, site: Site) -> None:
    record = site.store.pending("mail", limit=1)[0]
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_role("button", name=str(record.id), exact=True).click()
        expect(page.get_by_role("button", name="Cancel it…")).to_be_visible()
        site.store.cancel(record.id)
        page.get_by_role("button", name="Cancel it…").click()
        page.get_by_role("button", name="Cancel the record").click()
        expect(page.locator(".done")).to_have_text(f"{record.id} had been cancelled already.")


def test_what_is_not_there(browser: Browser, site: Site) -> None:
    with watched(browser, site.url, allowed="Failed to load resource") as watching:
        page = opened(watching, site, "/topics/mail/records")
        page.get_by_label("Id").fill("mail-0@99999")
        page.get_by_role("button", name="Open").click()
        expect(page.locator(".done")).to_contain_text("mail-0@99999 is not in the log")
        page.goto(site.at("/topics/nobody"))
        expect(page.locator("#connection")).to_contain_text("UnknownTopic")
