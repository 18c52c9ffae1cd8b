"""What mkdocs asks of us: links to the source, which is beside the pages in a clone, are plain text on the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A page with the links alone that lead to another page."""
    pages = Path(config["docs_dir"]).resolve()
    folder = Path(page.file.abs_src_path).resolve().parent

    def text(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(pages) else link[1]

    return _LINK.sub(text, markdown)
