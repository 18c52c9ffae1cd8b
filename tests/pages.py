"""The documentation as a reader meets it: a page's blocks of code in order, in one folder.

What becomes of a fenced block is said by its language and title:

    python                        is run, in one namespace for the page
    python title="worker.py"      is written to that file, for a shell to run
    python title="Celery"         is another system's code, or needs another machine: it has to compile
    shell, sh                     is run in one bash for the page, which ends at the first command that fails
    text                          is what the block above it shows; … stands for anything
    yaml                          is parsed

Another language is an error, so that no block goes unnoticed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import yaml

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]*)")?[^\n]*\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
_MARK = "\1"
"""Behind what a block shows: no block shows it."""
_PROGRAMS = {
    "python": 'exec {python} "$@"',
    "afterlog": 'exec {python} -c "from afterlog.cli.main import main; main()" "$@"',
}


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    title: str
    text: str
    place: str
    line: int

    @property
    def use(self) -> str:
        """What a page's test does with it: run, write, compile, compare, or parse it."""
        if self.language == "python":
            return "run" if not self.title else "write" if self.title.endswith(".py") else "compile"
        return {"shell": "run", "sh": "run", "text": "compare", "yaml": "parse"}[self.language]

    def compiled(self) -> Any:
        """A traceback names the line on the page."""
        return compile("\n" * self.line + self.text, self.place, "exec", dont_inherit=True)


def blocks(page: str) -> list[Block]:
    """In order. Raises KeyError where one is of a language that nothing is done with."""
    text = (ROOT / page).read_text()
    found = [
        Block(each[2], each[3] or "", re.sub(f"^{each[1]}", "", each[4], flags=re.MULTILINE), page,
              text.count("\n", 0, each.start(4)))
        for each in _FENCE.finditer(text)
    ]  # fmt: skip
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page}: a fence is not closed"
    return found


def uses(page: str) -> Counter[str]:
    return Counter(block.use for block in blocks(page))


class Reader:
    """Somebody who pastes the blocks of one page, one after another, in `folder`, which is the working directory."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        programs.mkdir(exist_ok=True)
        for name, script in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script.format(python=sys.executable)}\n")
            (programs / name).chmod(0o755)
        self._programs = programs
        self._shell: _Shell | None = None

    def read(self, page: str) -> list[tuple[Block, str]]:
        """Whatever was run, and what it showed."""
        ran: list[tuple[Block, str]] = []
        for block in blocks(page):
            if block.use == "run":
                ran.append((block, self.run(block)))
            elif block.use == "compare":
                expected, shown = block.text.strip(), ran[-1][1].strip()
                pattern = ".*".join(re.escape(part) for part in expected.split("…"))
                assert re.fullmatch(pattern, shown, re.DOTALL), f"{block.place}:{block.line} shows\n{shown}"
            else:
                self.take(block)
        return ran

    def run(self, block: Block) -> str:
        """What it shows. A Python block may use what those before it defined."""
        if block.language != "python":
            self._shell = self._shell or _Shell(self._folder, self._programs)
            return self._shell.run(block)
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(block.compiled(), self._namespace)
        return shown.getvalue()

    def start_anew(self) -> None:
        """The next Python block is a program by itself."""
        self._namespace = {"__name__": "__main__"}

    def take(self, block: Block) -> None:
        """What is not run: written, or looked at."""
        if block.language == "python":
            block.compiled()
            if block.use == "write":
                (self._folder / block.title).write_text(block.text)
        else:
            assert all(isinstance(each, dict) for each in yaml.safe_load_all(block.text)), block

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()


class _Shell:
    """One bash. What it left in the background ends with it."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._errors = programs / "errors"
        environment = {"PYTHONPATH": str(ROOT), "PATH": f"{programs}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a reader has fewer of them, too
        with self._errors.open("w") as errors:
            self._bash = subprocess.Popen(
                ["bash", "-eu"], cwd=folder, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._tell("trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT")

    def run(self, block: Block) -> str:
        self._tell(f"{block.text}\nprintf '{_MARK}\\n'")
        watchdog = threading.Timer(60, self._bash.kill)
        watchdog.start()
        lines = list(self._lines())
        watchdog.cancel()
        assert lines[-1:] == [_MARK], f"{block.place}:{block.line}\n{block.text}\n{lines}\n{self._errors.read_text()}"
        return "".join(lines[:-1])

    def _tell(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended: what it did not show says so
            print(text, file=self._bash.stdin, flush=True)

    def _lines(self) -> Iterator[str]:
        """Up to the mark, which may stand behind a line that has no end; without it where the shell ended."""
        for line in iter(cast(IO[str], self._bash.stdout).readline, ""):
            before, mark, _ = line.partition(_MARK)
            yield before
            if mark:
                yield mark
                return

    def close(self) -> None:
        self._bash.communicate(timeout=60)


@contextlib.contextmanager
def reading(tmp_path: Path) -> Iterator[Reader]:
    """A reader in a fresh folder, which is the working directory meanwhile."""
    folder, before = tmp_path / "here", Path.cwd()
    folder.mkdir()
    reader = Reader(folder, tmp_path / "programs")
    os.chdir(folder)
    try:
        yield reader
    finally:
        os.chdir(before)
        reader.close()
