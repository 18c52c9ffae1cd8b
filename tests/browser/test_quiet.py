"""What the page loads, and what it is not allowed to."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import EVERYWHERE, Site, opened, wait_for_another_look, watched


@pytest.mark.parametrize("fragment", EVERYWHERE)
def test_every_part_loads_without_a_complaint(browser: Browser, site: Site, fragment: str) -> None:
    with watched(browser, site.url) as watching:
        page = opened(watching, site, fragment)
        wait_for_another_look(page)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_what_it_may_not_do_is_refused_and_seen(browser: Browser, site: Site) -> None:
    with watched(browser, site.url, allowed="") as watching:
        page = opened(watching, site, "/")
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
        page.evaluate("document.body.setAttribute('style', 'color: red')")
        page.evaluate("fetch('http://127.0.0.2:9/').catch(() => 0)")
        assert page.evaluate("window.ran") is None
        refused = " ".join(watching.complaints)
        assert all(f"refused: {what}" in refused for what in ("script-src-elem", "style-src-attr", "connect-src"))


def test_markup_in_records_stays_text(browser: Browser, site: Site) -> None:
    text = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    site.store.send("mail", text.encode(), key=b"<b>key</b>", headers=[("<i>", b"<u>")], delay=30)
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/topics/mail/records?key=%3Cb%3Ekey%3C/b%3E")
        expect(page.locator("td", has_text="<img src=x")).to_be_visible()
        page.locator("tbody button").click()
        expect(page.locator("dialog pre")).to_have_text(text)
        assert "taken" not in page.title()
