"""How the pages differ from what is in the repository: links to the source, and doctests in docstrings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")
_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A link that leads out of the pages, to what is beside them in a clone, is plain text."""
    pages = Path(config["docs_dir"]).resolve()
    folder = Path(page.file.abs_src_path).resolve().parent

    def text(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(pages) else link[1]

    return _LINK.sub(text, markdown)


class Doctests(griffe.Extension):
    """What Markdown takes for quotes is code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
