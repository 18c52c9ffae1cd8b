"""Every block of code on the pages runs, a page's blocks in order in one folder, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import afterlog
import afterlog.base.errors
from afterlog import surface
from tests.pages import ROOT, blocks, reading, uses

RUN = {
    "client.md": 2,
    "coming-from/apscheduler.md": 1,
    "coming-from/celery.md": 1,
    "coming-from/huey.md": 1,
    "coming-from/nats.md": 1,
    "coming-from/pulsar.md": 1,
    "coming-from/rabbitmq.md": 1,
    "coming-from/redis.md": 1,
    "coming-from/sqs.md": 1,
    "how-it-works.md": 4,
    "how-to/backup.md": 3,
    "how-to/bulk.md": 4,
    "how-to/durability.md": 2,
    "how-to/encoding.md": 2,
    "how-to/idempotent.md": 2,
    "how-to/monitoring.md": 3,
    "how-to/outbox.md": 1,
    "how-to/priorities.md": 1,
    "how-to/ordering.md": 1,
    "how-to/partitions.md": 3,
    "how-to/payloads.md": 4,
    "how-to/recurring.md": 3,
    "how-to/retention.md": 2,
    "how-to/retries.md": 5,
    "how-to/shutting-down.md": 1,
    "how-to/testing.md": 3,
    "how-to/tracing.md": 2,
    "how-to/upgrade.md": 1,
    "how-to/web.md": 2,
    "how-to/worker.md": 2,
    "how-to/workers.md": 3,
    "index.md": 1,
    "limits.md": 1,
    "metrics.md": 2,
    "operations.md": 7,
    "replication.md": 2,
    "serving.md": 7,
    "start/celery.md": 1,
    "start/django.md": 1,
    "start/dramatiq.md": 3,
    "start/embedded.md": 5,
    "start/kafka.md": 1,
    "start/processes.md": 6,
    "tiered-storage.md": 1,
}
"""How many blocks of each page are run here; a page that has none is not in it."""
IN_SPARK = {"spark.md", "start/spark.md"}
"""Those run in tests/spark/test_pages.py."""
LEFT_OUT = {"decisions"}
"""Of the navigation: other pages lead there."""


@pytest.mark.parametrize("page", RUN)
@pytest.mark.share(2)
def test_a_page_runs_as_pasted_from_top_to_bottom_in_one_folder(page: str, tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        ran = reader.read(f"docs/{page}")
    assert RUN[page] == len(ran)


def test_no_block_is_left_out() -> None:
    pages = [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]
    run = {page: uses(f"docs/{page}")["run"] for page in pages}
    assert RUN == {page: run[page] for page in sorted(RUN)}
    assert {} == {page: count for page, count in run.items() if count and page not in RUN and page not in IN_SPARK}
    assert len(run) > len(RUN) > 20


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))])
def test_what_does_not_run_is_well_formed(page: str, tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        for block in blocks(page):
            if block.language == "python":
                block.compiled()
            elif block.use == "parse":
                reader.take(block)


def test_the_navigation_leads_to_every_page() -> None:
    named = re.findall(r"^ +- (?:.+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(str(page) for page in pages if page.parts[0] not in LEFT_OUT)


def test_the_reference_has_every_public_name() -> None:
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    named = [name for page in pages for name in re.findall(r"^::: afterlog\.(?:base\.)?(\w+)$", page, re.MULTILINE)]
    errors = {name for name in afterlog.__all__ if hasattr(afterlog.base.errors, name)}
    assert sorted(named) == sorted({*afterlog.__all__, "aio", "errors", "tracing"} - errors - {"__version__"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Store", surface.StoreSurface), ("Topic", surface.TopicSurface), ("Producer", surface.ProducerSurface),
        ("Consumer", surface.ConsumerSurface), ("Subscription", surface.SubscriptionSurface),
    ],
)  # fmt: skip
def test_the_reference_has_all_that_the_surface_says(name: str, said: type) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    found = re.search(rf"^::: afterlog\.{name}\n    options:\n      members: \[([^]]*)\]", pages, re.MULTILINE)
    assert found
    members = {member for each in said.__mro__ for member in vars(each) if not member.startswith("_")}
    assert set() == members - set(found[1].split(", "))
