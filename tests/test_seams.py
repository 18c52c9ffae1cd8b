"""The seams hold: only files.py touches the disk, clock.py asks for the time, sockets.py connects, environment.py
asks for what else is around;
and nothing runs bytes as code.

Names are what this test goes by. A method such as `open` or `exists`, which a Path and a Files both have, may be called
on something named `files` or `storage` and on a class (`Run.open(files, path)`); on anything else it is taken for a
Path's.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.architecture import LINKED, PACKAGE, ROOT, sources

SEAMS = (
    "base/files.py", "base/clock.py", "base/environment.py", "base/listeners.py", "base/sockets.py"
)  # fmt: skip


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IMPORTS = words("os posix io _io time random secrets uuid tempfile shutil socket fcntl mmap glob fileinput sqlite3")
IMPORTS_NOWHERE = words(
    "pickle marshal shelve yaml subprocess dill cloudpickle joblib ctypes tarfile zipfile runpy code codeop"
)
CALLS = words("open input breakpoint")
CALLS_NOWHERE = words("eval exec compile __import__")
PATH_METHODS = words(
    "read_bytes read_text write_bytes write_text mkdir rmdir stat lstat iterdir glob rglob walk touch chmod lchmod "
    "symlink_to hardlink_to link_to readlink is_file is_dir is_symlink is_mount is_socket is_fifo is_block_device "
    "is_char_device samefile resolve expanduser cwd home owner"
)
SHARED_METHODS = words("open exists unlink rename")
CLOCK_METHODS = words("now utcnow today")
ARRAY_METHODS = words(
    "random fromfile tofile memmap load save savez savez_compressed loadtxt savetxt genfromtxt open_memmap"
)


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`, `f` of `f()`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return last_name(node.func)
    return ""


def is_seam_or_class(receiver: ast.expr) -> bool:
    name = last_name(receiver).lstrip("_")
    return name in ("files", "storage") or (name[:1].isupper() and name != "Path")


def broken_rules(source: str, *, seam: bool = False) -> list[str]:
    """What in `source` goes around a seam, as ``line: what``. A `seam` itself may do what it is for."""
    broken = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [*_imports((alias.name for alias in names), seam)]
            case ast.ImportFrom(module="os", names=[ast.alias(name="PathLike")]):
                found = []  # a type, which touches nothing
            case ast.ImportFrom(module=str(module)):
                found = [*_imports([module], seam)]
            case ast.Call():
                found = [*_calls(node, seam)]
            case ast.Attribute(attr=name, value=ast.Name(id="np" | "numpy")) if name in ARRAY_METHODS:
                found = [f"uses numpy.{name}"]
            case _:
                found = []
        broken += [f"{node.lineno}: {what}" for what in found]  # type: ignore[attr-defined]
    return broken


def _imports(modules: Iterable[str], seam: bool) -> Iterator[str]:
    for top in (module.partition(".")[0] for module in modules):
        if top in IMPORTS_NOWHERE or (top in IMPORTS and not seam):
            yield f"imports {top}"


def _calls(node: ast.Call, seam: bool) -> Iterator[str]:
    match node.func:
        case ast.Name(id=name) if name in CALLS_NOWHERE or (name in CALLS and not seam):
            yield f"calls {name}()"
        case ast.Attribute(attr=name) if name in PATH_METHODS | CLOCK_METHODS and not seam:
            yield f"calls .{name}()"
        case ast.Attribute(attr=name, value=receiver) if name in SHARED_METHODS and not seam:
            if not is_seam_or_class(receiver):
                yield f"calls .{name}() of what is not named files"
        case ast.Attribute(attr="replace") if len(node.args) == 1 and not node.keywords and not seam:
            yield "calls .replace() of a Path"


class TestSources:
    @pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
    def test_goes_through_the_seams(self, path: Path) -> None:
        seam = str(path.relative_to(ROOT)) in SEAMS
        assert [] == broken_rules(path.read_text("utf-8"), seam=seam)

    def test_all_of_them_were_looked_at(self) -> None:
        names = {str(path.relative_to(ROOT)) for path in sources()}
        assert names >= {"base/files.py", "log/__init__.py", "index/__init__.py", "fetch/__init__.py"}
        assert set(SEAMS) <= names
        assert {path.resolve() for path in PACKAGE.rglob("*.py")} <= set(sources())

    def test_kernels_touch_nothing(self) -> None:
        for path in ROOT.glob("*/*.pyx"):
            imported = re.findall(r"^\s*(?:from|c?import)\s+(\w+)", path.read_text("utf-8"), re.MULTILINE)
            assert not (IMPORTS | IMPORTS_NOWHERE) & set(imported)


class TestTheTestSees:
    @pytest.mark.parametrize(
        "source",
        [
            "import os",
            "import os.path as somewhere",
            "from os import fsync",
            "from os import PathLike, fsync",
            "def f():\n    import time",
            "from time import sleep",
            "import random, json",
            "import tempfile",
            "import shutil",
            "import socket",
            "from io import open as look",
            "open('a')",
            "with open(path) as file: pass",
            "path.open()",
            "Path('a').open()",
            "self.path.read_bytes()",
            "path.read_text('utf-8')",
            "path.write_bytes(b'')",
            "(folder / 'a').exists()",
            "(folder / 'a').unlink()",
            "path.with_name('b').rename(path)",
            "path.replace(other)",
            "folder.mkdir(parents=True)",
            "path.stat().st_size",
            "list(folder.iterdir())",
            "folder.glob('*.log')",
            "path.touch()",
            "Path.cwd()",
            "datetime.now()",
            "datetime.datetime.utcnow()",
            "date.today()",
            "np.random.default_rng()",
            "np.fromfile(path)",
            "numpy.memmap(path)",
            "np.load(path)",
        ],
    )
    def test_going_around_a_seam(self, source: str) -> None:
        assert 1 == len(set(broken_rules(source)))
        assert [] == broken_rules(source, seam=True) or source.startswith(("np.", "numpy."))

    @pytest.mark.parametrize(
        "source",
        [
            "import pickle",
            "from pickle import loads",
            "import marshal",
            "import shelve",
            "import yaml",
            "import subprocess",
            "from subprocess import run",
            "eval('1')",
            "exec('pass')",
            "compile('1', '', 'eval')",
            "__import__('os')",
        ],
    )
    def test_what_may_be_nowhere(self, source: str) -> None:
        assert 1 == len(set(broken_rules(source, seam=True)))

    @pytest.mark.parametrize(
        "source",
        [
            "from afterlog.base.files import Files, opened",
            "from os import PathLike",
            "files.open(path)",
            "self._files.exists(path)",
            "self.files.unlink(path)",
            "Run.open(files, path)",
            "self._storage.open(key)",
            "'a'.replace('b', 'c')",
            "dataclasses.replace(config, linger_ms=0)",
            "when.replace(tzinfo=utc)",
            "re.compile('a')",
            "clock.now_ms()",
            "self.timeline.append(1)",
            "path.with_suffix('.log').name",
            "import sys, threading, datetime",
            "np.sort(column)",
        ],
    )
    def test_what_is_innocent(self, source: str) -> None:
        assert [] == broken_rules(source)


@pytest.fixture(scope="module")
def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", "utf-8")
    return parser


class TestLinkedFolders:
    """Each folder that afterlog/ links to is declared wherever a folder must be."""

    def test_each_link_is_relative_and_leads_to_its_namesake(self) -> None:
        assert {"log", "index", "fetch"} <= set(LINKED)
        assert {name: f"../{name}" for name in LINKED} == {name: str((PACKAGE / name).readlink()) for name in LINKED}

    def test_packages(self, settings: configparser.ConfigParser) -> None:
        packages = settings["options"]["packages"].split()
        assert {"afterlog", *(f"afterlog.{name}" for name in LINKED)} == {
            name for name in packages if name.count(".") < 2
        }
        inner = {path.parent for name in LINKED for path in (ROOT / name).rglob("__init__.py")}
        assert {"afterlog", *(".".join(("afterlog", *path.relative_to(ROOT).parts)) for path in inner)} == set(packages)

    def test_layers(self, settings: configparser.ConfigParser) -> None:
        layers = set(re.split(r"[\s|:()]+", settings["importlinter:contract:layers"]["layers"]))
        assert {f"afterlog.{name}" for name in LINKED} <= layers

    def test_bare_names_are_banned_and_links_are_not_checked_twice(self) -> None:
        ruff = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]
        banned = ruff["lint"]["flake8-tidy-imports"]["banned-api"]
        assert {name: {"msg": f"import afterlog.{name}"} for name in LINKED} == {name: banned[name] for name in LINKED}
        assert {f"afterlog/{name}" for name in LINKED} <= set(ruff["exclude"])

    def test_git_keeps_them(self) -> None:
        ignored = (ROOT / ".gitignore").read_text("utf-8").split()
        assert not {"log", "log/", "/log/", "*.log", "index", "index/"} & set(ignored)


class TestInstalled:
    def test_only_afterlog_can_be_imported(self, settings: configparser.ConfigParser, tmp_path: Path) -> None:
        """The packages listed in setup.cfg, put where an installer would put them."""
        for package in settings["options"]["packages"].split():
            parts = package.split(".")
            target = tmp_path.joinpath(*parts)
            target.mkdir()
            for path in ROOT.joinpath(*parts).glob("*.py"):
                shutil.copy(path, target)
        program = (
            "import importlib, json, sys\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from importlib.util import find_spec\n"
            "places = {name: getattr(find_spec(name), 'origin', None) for name in sys.argv[2:]}\n"
            "print(json.dumps(places))\n"
        )
        bare = [*LINKED, "tests", "bench", "examples"]
        inner = [f"afterlog.{name}" for name in (*LINKED, "base.files", "base.clock", "base.errors")]
        ran = subprocess.run(
            [sys.executable, "-I", "-c", program, str(tmp_path), *bare, *inner],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        places: dict[str, str | None] = json.loads(ran.stdout)
        ours = {name for name, place in places.items() if place and Path(place).is_relative_to(tmp_path)}
        assert set(inner) == ours
        assert not {name for name in bare if (places[name] or "").startswith(str(ROOT))}
