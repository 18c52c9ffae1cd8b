"""Who may do what, and that a page of elsewhere may nothing."""

from __future__ import annotations

import json

from playwright.sync_api import Browser, Route, expect

from tests.browser.site import Site, opened, watched


def test_it_is_asked_for_and_kept_for_the_tab(browser: Browser, guarded: Site, tokens: dict[str, str]) -> None:
    with watched(browser, guarded.url, allowed="401") as watching:
        page = watching.page
        page.goto(guarded.at("/"))
        dialog = page.get_by_role("dialog", name="Token")
        dialog.get_by_label("Token").fill("afterlog_wrong")
        dialog.get_by_role("button", name="Use this token").click()
        expect(dialog.get_by_label("Token")).to_have_value("afterlog_wrong")
        dialog.get_by_label("Token").fill(tokens["look"])
        dialog.get_by_role("button", name="Use this token").click()
        expect(page.locator("#connection")).to_have_text("live")
        page.reload()
        expect(page.locator("#connection")).to_have_text("live")
        kept = "[localStorage.length, document.cookie, Object.values(sessionStorage)]"
        assert [0, "", [tokens["look"]]] == page.evaluate(kept)
        assert tokens["look"] not in page.content()


def test_without_the_scope(browser: Browser, guarded: Site, tokens: dict[str, str]) -> None:
    record = guarded.store.pending("mail", limit=1)[0]
    with watched(browser, guarded.url, allowed="403") as watching:
        page = watching.page
        page.add_init_script(f"sessionStorage.setItem('afterlog.token', {tokens['look']!r})")
        opened(watching, guarded, "/topics/mail/records")
        page.get_by_role("button", name=str(record.id), exact=True).click()
        expect(page.get_by_role("button", name="Cancel it…")).to_be_disabled()
        expect(page.get_by_role("button", name="Reschedule…")).to_be_disabled()
        expect(page.get_by_text("Your token may not send to this topic.")).to_be_visible()
        page.locator("dialog button", has_text="Cancel it…").evaluate("button => button.disabled = false")
        page.get_by_role("button", name="Cancel it…").click()
        page.get_by_role("button", name="Cancel the record").click()
        expect(page.get_by_role("alert")).to_contain_text("NotAllowed")
        page.goto(guarded.at("/topics/mail/dead-letters"))
        expect(page.get_by_role("button", name="Send back…")).to_be_disabled()
    assert record.id == guarded.store.pending("mail", limit=1)[0].id


def test_with_the_scope_for_a_prefix(browser: Browser, guarded: Site, tokens: dict[str, str]) -> None:
    record = guarded.store.pending("mail", limit=1)[0]
    with watched(browser, guarded.url) as watching:
        page = watching.page
        page.add_init_script(f"sessionStorage.setItem('afterlog.token', {tokens['mail']!r})")
        opened(watching, guarded, "/")
        expect(page.locator("tbody tr th")).to_have_text(["mail 2 partitions", "mail.dead"])
        page.goto(guarded.at("/topics/mail/records"))
        page.get_by_role("button", name=str(record.id), exact=True).click()
        page.get_by_role("button", name="Cancel it…").click()
        page.get_by_role("button", name="Cancel the record").click()
        expect(page.locator(".done")).to_contain_text("is cancelled")
    assert record.id != guarded.store.pending("mail", limit=1)[0].id


def test_a_page_of_elsewhere_can_do_nothing(browser: Browser, site: Site) -> None:
    """A form and a script of another origin, which a browser would let reach a server on this machine."""
    record = site.store.pending("mail", limit=1)[0]
    cancel = f"{site.url}/v1/topics/mail/cancel"
    body = f'{{"ids":["{record.id}"],"x":"'.replace('"', "&quot;")
    field = f"<input name='{body}' value='&quot;}}'>"  # with the = between them it is JSON
    form = f"<form method=post enctype=text/plain action={cancel}>{field}</form>"
    with watched(browser, "elsewhere.test", allowed="") as watching:
        page = watching.page

        def elsewhere(route: Route) -> None:
            route.fulfill(body=form, content_type="text/html")

        page.route("http://elsewhere.test/", elsewhere)
        page.goto("http://elsewhere.test/")
        said = page.evaluate(
            "([url, body]) => fetch(url, {method: 'POST', body, headers: {'Content-Type': 'application/json'}})"
            ".then(() => 'answered', () => 'refused')",
            [cancel, json.dumps({"ids": [str(record.id)]})],
        )
        assert "refused" == said
        with page.expect_response(cancel) as answered:
            page.evaluate("document.forms[0].submit()")
        assert 403 == answered.value.status
    assert record.id == site.store.pending("mail", limit=1)[0].id
