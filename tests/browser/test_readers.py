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
        held = page.locator("table", has=page.get_by_text("With readers")).locator("tbody tr")
        expect(held).to_have_count(2)
        expect(held.first.locator("[data-title='Leased until']")).to_contain_text("in 2")


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


def test_dead_letters_one_by_one(browser: Browser, site: Site) -> None:
    """One is edited and sent back, one let go, and the rest by their reason."""
    store = site.store
    for number in range(4):
        store.send("mail", b"%d" % number, partition=0)
    with store.subscribe("mail", "sender", dead_letter="mail.dead") as reader:
        for message in reader.receive(4):
            reader.reject(message, f"broken {message.value!r}" if message.value != b"3" else "no route")
    first, second, *_ = [str(letter.message.id) for letter in store.dead_letters("mail.dead")]
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail.dead/dead-letters")
        page.get_by_role("button", name=f"Send {first} back").click()
        expect(page.get_by_label("Value")).to_have_value("0")
        page.get_by_label("Value").fill("edited")
        page.get_by_role("button", name="Send it back").click()
        expect(page.get_by_text(f"{first} was sent back.").first).to_be_visible()
        page.get_by_role("button", name=f"Discard {second}").click()
        page.keyboard.press("Escape")
        page.get_by_role("button", name=f"Discard {second}").click()
        page.get_by_role("button", name="Discard it").click()
        expect(page.get_by_text("1 dead letter was let go.").first).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Reason has").fill("no route")
        page.get_by_label("Reason has").press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Discard…", exact=True).click()
        page.get_by_role("button", name="Discard them").click()
        expect(page.locator("tbody tr")).to_have_count(0)
    assert [b"2"] == [letter.message.value for letter in store.dead_letters("mail.dead")]
    with store.subscribe("mail", "sender") as reader:
        assert [b"edited"] == [message.value for message in reader.receive(5)]


def test_pause(browser: Browser, site: Site) -> None:
    store = site.store
    with store.subscribe("mail", "sender") as reader, watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/subscriptions")
        page.get_by_role("button", name="Pause sender").click()
        expect(page.get_by_text("sender is paused.").first).to_be_visible()
        expect(page.get_by_role("row", name="sender")).to_contain_text("Paused")
        assert reader.stats().paused
        page.get_by_role("button", name="Resume sender").click()
        expect(page.get_by_role("button", name="Pause sender")).to_be_visible()
        page.get_by_role("button", name="Pause the topic").click()
        expect(page.get_by_text("The topic is paused: nothing is handed out.")).to_be_visible()
        assert store.topic("mail").settings.paused
        page.get_by_role("link", name="Topics", exact=True).first.click()
        expect(page.get_by_role("row", name="mail 2 partitions, paused")).to_be_visible()
    store.resume("mail")
