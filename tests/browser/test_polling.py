"""When the server is asked, and when not."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.browser.site import Site, opened, watched


def test_it_pauses_in_a_hidden_tab_and_by_the_button(browser: Browser, site: Site) -> None:
    with watched(browser, site.url) as watching:
        page = watching.page
        page.clock.install()
        opened(watching, site, "/")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        watching.asked.clear()
        page.clock.run_for(60_000)
        assert [] == watching.asked
        page.evaluate("delete document.hidden")
        with page.expect_response(lambda response: "/v1/overview" in response.url):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#connection")).to_have_text("paused")
        watching.asked.clear()
        page.clock.run_for(60_000)
        assert [] == watching.asked
        with page.expect_response(lambda response: "/v1/overview" in response.url):
            page.get_by_role("button", name="Pause").click()


def test_a_server_that_is_gone_and_comes_back(browser: Browser, site: Site) -> None:
    with watched(browser, site.url, allowed="Failed to load resource") as watching:
        page = opened(watching, site, "/")
        page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
        expect(page.locator("#connection")).to_contain_text("The server cannot be reached")
        expect(page.get_by_role("row", name="mail 2 partitions")).to_be_visible()
        page.unroute("**/v1/**")
        expect(page.locator("#connection")).to_have_text("live")
