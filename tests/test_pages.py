"""Every block of code on the pages runs, a page's blocks in order in one folder, as a reader would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT, reading, uses

RUN = {
    "client.md": 2,
    "start/embedded.md": 4,
    "start/processes.md": 6,
    "tiered-storage.md": 1,
}
"""How many blocks of each page are run here; a page that has none is not in it."""
IN_SPARK = {"spark.md", "start/spark.md"}
"""Those run in tests/spark/test_pages.py."""


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_as_pasted_from_top_to_bottom_in_one_folder(page: str, tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        ran = reader.read(f"docs/{page}")
    assert RUN[page] == len(ran)


def test_no_block_is_left_out() -> None:
    pages = [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]
    run = {page: uses(f"docs/{page}")["run"] for page in pages}
    assert RUN == {page: run[page] for page in sorted(RUN)}
    assert {} == {page: count for page, count in run.items() if count and page not in RUN and page not in IN_SPARK}
