"""What the pages have for Spark runs as pasted: README's section, docs/start/spark.md, the program in docs/spark.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from afterlog import OS, Config
from afterlog.base.clock import ManualClock
from afterlog.store.store import open_store
from tests.pages import ROOT, blocks
from tests.support import NOW_MS

INSTALLED = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
"""As in an environment that is activated."""


def programs(page: str) -> list[str]:
    return [block.text for block in blocks(page) if "pyspark" in block.text]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=os.environ | INSTALLED, capture_output=True, text=True, timeout=180)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_readme_runs_as_pasted(tmp_path: Path) -> None:
    [block] = programs("README.md")
    shown = run([sys.executable, "-c", block], tmp_path)
    assert re.search(r"^\|20\d\d-.*\|\s*4167\|$", shown, re.MULTILINE), shown


def test_spark_submit(tmp_path: Path) -> None:
    import pyspark

    config = Config(durability=OS, segment_bytes=4_096, batch_bytes_max=2_048)
    with open_store(tmp_path / "store", config, ManualClock(NOW_MS), None) as store:
        store.create_topic("mail")
        store.send_many("mail", [b"v" * 50] * 200)
    [program] = programs("docs/spark.md")
    (tmp_path / "index.py").write_text(program)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    shown = run([str(submit), "--master", "local[1]", "index.py", str(tmp_path / "store")], tmp_path)
    assert re.search(r"^\| *mail\|skipped\|", shown, re.MULTILINE), shown


def test_the_page_to_start_with_runs_from_top_to_bottom(tmp_path: Path) -> None:
    page = "docs/start/spark.md"
    program = "\n".join(block.text for block in blocks(page) if block.use == "run")
    shown = run([sys.executable, "-c", program], tmp_path)
    [expected] = [block.text for block in blocks(page) if block.use == "compare"]
    assert expected in shown
    assert re.search(r"^\|20\d\d-.*\|\s*5000\|\n\|20\d\d-.*\|\s*5000\|$", shown, re.MULTILINE), shown
