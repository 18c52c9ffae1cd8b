"""One browser for the lane, a served store for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

import afterlog
from afterlog.api.operation import Scope
from afterlog.base.files import OsFiles
from afterlog.server.running import Options, Serving
from afterlog.server.tokens import TokenFile
from tests.browser.site import ARGUMENTS, CHROMIUM, HOUR_MS, PATIENCE_MS, Site

RECORDS = 400
LOCAL = ("127.0.0.1", 0)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def served(path: Path, options: Options) -> Iterator[Site]:
    """A store with 400 records that are due within the next ten days, and not within the next hour."""
    with afterlog.open(path / "data", config=afterlog.Config(durability=afterlog.OS)) as store:
        store.create_topic("mail", partitions=2)
        store.create_topics(["mail.dead"])
        store.create_topic("audit", delayed=False)
        begin, step = store.now_ms() + HOUR_MS, 240 * HOUR_MS // RECORDS
        values = [b'{"to": "user-%d@example.org", "number": %d}' % (row % 50, row) for row in range(RECORDS)]
        keys = [b"user-%d" % (row % 50) for row in range(RECORDS)]
        store.send_many("mail", values, keys=keys, deliver_after=[begin + row * step for row in range(RECORDS)])
        serving = Serving(store, options)
        serving.start()
        try:
            [url] = [each for each in serving.addresses if each.startswith("http")]
            yield Site(store, url)
        finally:
            serving.stop()
            serving.stop()
            assert serving.join(30)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Whoever comes may do everything."""
    with served(tmp_path, Options(socket=False, listen=LOCAL, no_auth=True)) as made:
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> TokenFile:
    return TokenFile(OsFiles(), tmp_path / "tokens.json")


@pytest.fixture
def tokens(token_file: TokenFile) -> dict[str, str]:
    """`look` may look at everything, `mail` may do everything with topics whose names begin so."""
    return {
        "look": token_file.add("look", [Scope.LOOK], [""]),
        "mail": token_file.add("mail", Scope, ["mail"]),
    }


@pytest.fixture
def guarded(tmp_path: Path, token_file: TokenFile, tokens: dict[str, str]) -> Iterator[Site]:
    """A store that asks for tokens."""
    with served(tmp_path, Options(socket=False, listen=LOCAL, tokens=token_file.path)) as made:
        yield made
