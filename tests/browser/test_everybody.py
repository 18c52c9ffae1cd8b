"""By keyboard, by screen reader, in light and dark, on a phone, without motion."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import BUTTON, EVERYWHERE, PHONE, Site, opened, watched

WEAK_TEXT = (Path(__file__).parent / "weak_text.js").read_text("utf-8")
NAMED = {"button", "link", "textbox", "searchbox", "combobox", "spinbutton", "Date", "DateTime", "table", "application"}
MOVING = """() => [...document.querySelectorAll("*")].map((each) => getComputedStyle(each)).filter(
    (style) => style.transitionDuration !== "0s" || style.animationName !== "none").length"""


def test_by_keyboard_alone(browser: Browser, site: Site) -> None:
    record = site.store.pending("mail", limit=1)[0]
    with watched(browser, site.url) as watching:
        page = opened(watching, site, "/")
        press = page.keyboard.press

        def tab_to(name: str) -> None:
            for _ in range(40):
                press("Tab")
                if name == page.evaluate("document.activeElement.innerText?.trim()"):
                    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                    assert "none" != outline
                    return
            raise AssertionError(f"Tab never came to {name}")

        press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        press("Enter")
        expect(page.locator("main")).to_be_focused()
        tab_to("mail")
        press("Enter")
        expect(page.get_by_role("heading", name="mail", exact=True)).to_be_visible()
        expect(page.locator("main")).to_be_focused()
        tab_to("Records")
        press("Enter")
        expect(page.get_by_role("button", name=str(record.id), exact=True)).to_be_visible()
        tab_to(str(record.id))
        press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        tab_to("Cancel it…")
        press("Enter")
        tab_to("Cancel the record")
        press("Enter")
        expect(page.locator(".done")).to_contain_text("is cancelled")
    assert record.id != site.store.pending("mail", limit=1)[0].id


@pytest.mark.parametrize("fragment", EVERYWHERE)
def test_every_control_has_a_name(browser: Browser, site: Site, fragment: str) -> None:
    """By the browser's own accessibility tree."""
    site.store.send("mail", b"x")
    with site.store.subscribe("mail", "sender"), watched(browser, site.url) as watching:
        page = opened(watching, site, fragment)
        tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        seen = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if "role" in node}
        assert not [role for role, name in seen if role in NAMED and not name.strip()]
        assert NAMED & {role for role, _ in seen}
        assert {"banner", "main"} <= {role for role, _ in seen}
        assert 1 == page.locator("h1").count()
        ids = page.locator("[id]").evaluate_all("all => all.map((each) => each.id)")
        assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fragment", EVERYWHERE)
def test_contrast(browser: Browser, site: Site, scheme: str, fragment: str) -> None:
    with watched(browser, site.url, color_scheme=scheme) as watching:
        page = opened(watching, site, fragment)
        assert [] == page.evaluate(WEAK_TEXT)


def test_light_and_dark(browser: Browser, site: Site) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with watched(browser, site.url, color_scheme="light") as watching:
        page = opened(watching, site, "/")
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(ground)
        assert light != dark
        page.get_by_label("Theme").select_option("light")
        assert light == page.evaluate(ground)
        page.reload()
        assert light == page.evaluate(ground)
        page.get_by_label("Theme").select_option("")
        assert dark == page.evaluate(ground)


@pytest.mark.parametrize("fragment", EVERYWHERE)
def test_on_a_phone_nothing_hangs_over(browser: Browser, site: Site, fragment: str) -> None:
    site.store.send("mail", b"x" * 500 + b" " + b"y" * 500, key=b"k" * 200, delay=60)
    with watched(browser, site.url, viewport=PHONE, has_touch=True, is_mobile=True) as watching:
        page = opened(watching, site, fragment)
        assert PHONE["width"] >= page.evaluate("document.documentElement.scrollWidth")
        if fragment.endswith("records"):
            page.locator("tbody").get_by_role(BUTTON).first.click()
            expect(page.get_by_role("dialog")).to_be_visible()
            assert PHONE["width"] >= page.evaluate("document.documentElement.scrollWidth")
            wide = page.evaluate(
                "document.querySelector('dialog').scrollWidth - document.querySelector('dialog').clientWidth"
            )
            assert wide <= 0


def test_with_reduced_motion_nothing_moves(browser: Browser, site: Site) -> None:
    with watched(browser, site.url, reduced_motion="reduce") as watching:
        page = opened(watching, site, "/topics/mail")
        assert 0 == page.evaluate(MOVING)
