"""README's Spark section runs as pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_readme_runs_as_pasted(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if "pyspark" in block]
    installed = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}  # as in an environment that is activated
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, env=os.environ | installed,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert re.search(r"^\|20\d\d-.*\|\s*4167\|$", done.stdout, re.MULTILINE), done.stdout
