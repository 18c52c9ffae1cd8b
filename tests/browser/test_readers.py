"""Subscriptions, groups, partitions, dead letters and their way back."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.browser.site import Site, opened, watched


def test_subscriptions_and_groups(browser: Browser, site: Site) -> None:
    for _ in range(5):
        site.store.send("mail", b"now", partition=0)
    with site.store.subscribe("mail", "sender") as reader, watched(browser, site.url) as watching:
        reader.ack(reader.receive(3)[0])
        with site.store.consumer("mail", group="audit") as consumer:
            consumer.poll(2)
            consumer.commit()
        page = opened(watching, site, "/topics/mail/subscriptions")
        row = page.get_by_role("row", name="sender")
        for title, number in (("Lag", "4"), ("Leased", "2"), ("Acked", "1"), ("Due", "2"), ("Pending", "400")):
            expect(row.locator(f"[data-title={title}]")).to_have_text(number)
        expect(page.get_by_role("row", name="audit").locator("[data-title=Lag]")).to_have_text("3")


def test_partitions_segments_and_what_holds_the_disk(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/partitions")
        expect(page.get_by_role("heading", level=2)).to_have_count(3)
        log = site.store.topic("mail").partition(1)
        row = page.locator("tbody").first.get_by_role("row").nth(1)
        expect(row.locator("[data-title='Log end']")).to_have_text(f"{log.log_end_offset}")
        expect(page.locator("[data-title='Only here']").first).to_contain_text("1, ")


def test_redrive(browser: Browser, site: Site) -> None:
    store = site.store
    store.send("mail", b"broken", key=b"k", partition=0)
    with store.subscribe("mail", "sender", dead_letter="mail.dead") as reader:
        reader.reject(reader.receive(1)[0], "ConnectionRefusedError: no route")
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail.dead/dead-letters")
        row = page.locator("tbody tr")
        expect(row).to_contain_text("ConnectionRefusedError: no route")
        page.get_by_role("button", name="Send back…").click()
        page.keyboard.press("Escape")
        assert 1 == len(store.dead_letters("mail.dead"))
        page.get_by_role("button", name="Send back…").click()
        page.get_by_role("button", name="Send them back").click()
        expect(page.get_by_text("1 record was sent back.").first).to_be_visible()
        expect(row).to_have_count(0)
        expect(page.get_by_role("button", name="Send back…")).to_be_disabled()
    assert [] == store.dead_letters("mail.dead")
    with store.subscribe("mail", "sender") as reader:
        assert [b"broken"] == [message.value for message in reader.receive(5)]
