"""All topics, also where there are a thousand."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, expect

from tests.browser.site import Site, local, opened, wait_for_another_look, watched


def test_figures_and_rows_are_the_stores(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/")
        tile = page.locator(".tile", has=page.get_by_text("Pending", exact=True)).locator(".value")
        expect(tile).to_have_text(f"{len(site.store.pending('mail', limit=10_000)):,}")
        row = page.get_by_role("row", name="mail 2 partitions")
        expect(row.locator("[data-title=Pending]")).to_have_text("400")
        site.store.send("mail", b"one more", delay=3_600)
        expect(row.locator("[data-title=Pending]")).to_have_text("401")
        expect(page.get_by_role("row", name="audit FIFO")).to_be_visible()


def test_instants_in_the_readers_zone_and_utc_beside(browser: Browser, site: Site) -> None:
    [first] = site.store.pending("mail", limit=1)
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records")
        time = page.locator("tbody time").first
        expect(time).to_have_text(local(first.due))
        utc = datetime.fromtimestamp(first.due / 1_000, ZoneInfo("UTC")).strftime("%Y-%m-%d %H:%M:%S")
        expect(time).to_have_attribute("title", re.compile(f"^{utc}.* UTC$"))


def test_a_thousand_topics(browser: Browser, site: Site) -> None:
    site.store.create_topics([f"tenant-{number:04}" for number in range(1_000)])
    site.store.send("tenant-0777", b"x", delay=3_600)
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/")
        rows = page.locator("tbody tr")
        expect(page.get_by_text("1 to 50 of 1,003")).to_be_visible()
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="Next page").click()
        expect(page.get_by_text("51 to 100 of 1,003")).to_be_visible()
        page.get_by_role("button", name="Pending").click()
        expect(rows.nth(1)).to_contain_text("tenant-0777")
        page.get_by_label("Filter topics").fill("TENANT-00")
        expect(page.get_by_text("1 to 50 of 100 that match, of 1,003")).to_be_visible()
        watching.asked.clear()
        wait_for_another_look(page)
        assert {"GET /v1/overview"} == set(watching.asked)
        page.reload()
        expect(page.get_by_label("Filter topics")).to_have_value("TENANT-00")
        expect(page.get_by_text("1 to 50 of 100 that match, of 1,003")).to_be_visible()


def test_topics_are_made_sent_to_purged_and_deleted(browser: Browser, site: Site) -> None:
    store = site.store
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/")
        page.get_by_role("button", name="New topic…").click()
        page.get_by_label("Name").fill("orders")
        page.get_by_label("Partitions").fill("2")
        page.get_by_role("button", name="Make it").click()
        page.get_by_role("link", name="orders").click()
        assert 2 == store.topic("orders").partition_count
        for value, delay in (("now", ""), ("later", "3600")):
            page.get_by_role("button", name="Send a record…").click()
            page.get_by_label("Value").fill(value)
            page.get_by_label("Key").fill("k")
            page.get_by_label("Delay in seconds").fill(delay)
            with page.expect_response(lambda response: response.url.endswith("/orders/records")):
                page.get_by_role("button", name="Send it").click()
            expect(page.get_by_text("was sent.").first).to_be_visible()
        [later] = store.pending("orders")
        assert (b"later", b"k") == (later.value, later.key)
        page.get_by_role("button", name="Purge…").click()
        page.get_by_label("What is pending, too").check()
        page.get_by_role("button", name="Purge it").click()
        expect(page.get_by_text("2 records were purged.").first).to_be_visible()
        assert [] == store.pending("orders")
        page.get_by_role("button", name="Delete the topic…").click()
        page.get_by_label("Its name").fill("other")
        page.get_by_role("button", name="Delete the topic", exact=True).click()
        expect(page.get_by_text("Not deleted: the name was not orders.")).to_be_visible()
        page.get_by_role("button", name="Delete the topic…").click()
        page.get_by_label("Its name").fill("orders")
        page.get_by_role("button", name="Delete the topic", exact=True).click()
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        expect(page.get_by_role("link", name="orders")).to_have_count(0)
    assert "orders" not in [topic.name for topic in store.topics()]


def test_what_is_refused_is_said(browser: Browser, site: Site) -> None:
    with watched(browser, site.url, allowed="400") as watching:
        page = opened(watching, site, "/")
        page.get_by_role("button", name="New topic…").click()
        page.get_by_label("Name").fill("a/b")
        page.get_by_role("button", name="Make it").click()
        expect(page.get_by_text("InvalidTopic")).to_be_visible()


def test_schedules(browser: Browser, site: Site) -> None:
    store = site.store
    store.schedule("mail", name="report", every=timedelta(hours=1), value=b"now")
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/")
        page.get_by_role("link", name="Schedules").click()
        row = page.get_by_role("row", name="report")
        expect(row.locator("[data-title=When]")).to_have_text("every 1 h")
        page.get_by_role("button", name="Pause report").click()
        expect(row.locator("[data-title='Next due']")).to_have_text("paused")
        [paused] = store.schedules()
        assert paused.paused
        page.get_by_role("button", name="Resume report").click()
        expect(page.get_by_role("button", name="Pause report")).to_be_visible()
        page.get_by_role("button", name="Send report now").click()
        expect(page.get_by_text("A record of report was sent.").first).to_be_visible()
        page.get_by_role("button", name="Remove report").click()
        page.get_by_role("button", name="Remove the schedule").click()
        expect(page.get_by_text("Nothing recurs.")).to_be_visible()
    assert [] == store.schedules()
