"""The page as the server gives it: complete, typed, under its policy, and of nobody else."""

from __future__ import annotations

import configparser
import re
from fnmatch import fnmatch

import pytest

from afterlog.server.page_files import FOLDER, INDEX, NAMES, POLICY, media_type_of, page_file
from tests.architecture import ROOT
from tests.server.support import STRANGER, Setting, run

TYPES = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip
NAMESPACE = "http://www.w3.org/2000/svg"
MENTIONED = re.compile(r"""(?:\bfrom |src=|href=|import\()["']([\w./-]+\.\w+)["']""")


def text_of(name: str) -> str:
    return page_file(name).decode("utf-8")


def test_what_lies_in_the_folder_is_served_and_nothing_else() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(NAMES)


def test_it_is_in_the_package() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", "utf-8")
    patterns = [each.strip() for each in settings["options.package_data"]["afterlog.server"].split(",")]
    assert [] == [name for name in NAMES if not any(fnmatch(f"page/{name}", pattern) for pattern in patterns)]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_each_file_with_its_type_and_the_policy_and_without_a_token(name: str) -> None:
    async def test(setting: Setting) -> None:
        said = await setting.client.ask("GET", f"/{name}", peer=STRANGER)
        assert (200, page_file(name or INDEX)) == (said.status, said.body)
        assert TYPES[(name or INDEX).rpartition(".")[2]] == said.headers["content-type"] == media_type_of(name or INDEX)
        assert POLICY == said.headers["content-security-policy"]
        assert "nosniff" == said.headers["x-content-type-options"]
        assert "no-referrer" == said.headers["referrer-policy"]

    run(test)


def test_the_policy_lets_in_nothing_that_is_not_of_this_server() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert "'none'" == rules.pop("default-src")
    assert "'self' data:" == rules.pop("img-src")
    assert {"'self'", "'none'"} == set(rules.values())


@pytest.mark.parametrize(
    "path", ["/page/main.js", "/index.htm", "/../setup.cfg", "/%2e%2e/setup.cfg", "/page_files.py"]
)
def test_nothing_else_is_served(path: str) -> None:
    async def test(setting: Setting) -> None:
        assert 404 == (await setting.client.ask("GET", path)).status

    run(test)


@pytest.mark.parametrize("name", NAMES)
def test_no_file_mentions_another_host(name: str) -> None:
    text = text_of(name).replace(NAMESPACE, "")
    assert not re.search(r"(?i)\b(?:https?:)?//[\w-]+\.[\w.-]+", text)
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".svg")])
def test_what_a_file_mentions_is_there(name: str) -> None:
    mentioned = {each.removeprefix("./") for each in MENTIONED.findall(text_of(name))}
    assert mentioned <= set(NAMES)
    assert mentioned or name not in (INDEX, "main.js")


def test_nothing_is_written_into_the_markup() -> None:
    """Inline code and style would be refused by the policy; text is never made into markup."""
    index = text_of(INDEX)
    assert not re.search(r"(?i)\son\w+\s*=|\sstyle\s*=|<style|<script(?![^>]*\ssrc=)", index)
    for name in NAMES:
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function", text_of(name)
            )
