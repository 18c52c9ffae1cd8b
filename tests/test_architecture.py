"""The architecture is what docs/architecture.md and setup.cfg say, and one name means one thing."""

from __future__ import annotations

import configparser
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture import LINKED, PACKAGE, PAGE, ROOT, contracts, defined_names, first_sentence, page, sources


def twice(named: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that more than one module has, and where."""
    places: dict[str, set[str]] = defaultdict(set)
    for name, path in named:
        places[name].add(str(path.relative_to(ROOT)))
    return {name: sorted(paths) for name, paths in sorted(places.items()) if len(paths) > 1}


SURFACE = "afterlog.surface -> afterlog.*.*"
"""The one module that names types of what stands above it."""


class TestNames:
    def test_a_class_or_type_has_its_name_for_itself(self) -> None:
        assert {} == twice((name, path) for path in sources() for name in defined_names(path))

    def test_a_module_has_its_name_for_itself(self) -> None:
        assert {} == twice((path.stem, path) for path in sources() if path.stem != "__init__")

    def test_the_test_sees(self, tmp_path: Path) -> None:
        source = tmp_path / "a.py"
        source.write_text("class Bc:\n    class _De: ...\nclass X: ...\nFg = int\n_Hi: TypeAlias = int\nJK = lm = 1\n")
        assert ["Bc", "De", "Fg", "Hi", "X"] == sorted(defined_names(source))
        assert {"A": ["a", "b"]} == twice([("A", ROOT / "b"), ("A", ROOT / "a"), ("A", ROOT / "a"), ("B", ROOT / "b")])


class TestContracts:
    def test_each_module_has_a_place(self) -> None:
        listed = {
            name: sorted(module for layer in layers for module in layer.modules) for name, layers in contracts().items()
        }
        beside = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "_version"}
        expected = {"layers": sorted(f"afterlog.{name}" for name in {*LINKED, *beside})}
        for name in LINKED:
            modules = [*(ROOT / name).glob("*.py"), *(path.parent for path in (ROOT / name).glob("*/__init__.py"))]
            expected[name] = sorted(path.stem for path in modules if path.stem != "__init__")
        assert expected == listed

    @pytest.mark.parametrize("name", LINKED)
    def test_each_folder_is_held_as_a_whole(self, name: str) -> None:
        settings = configparser.ConfigParser()
        settings.read(ROOT / "setup.cfg", "utf-8")
        contract = dict(settings[f"importlinter:contract:{name}"])
        assert contract.pop("layers")
        assert contract.pop("name")
        assert contract.pop("ignore_imports", SURFACE) == SURFACE
        assert {"type": "layers", "containers": f"afterlog.{name}", "exhaustive": "True"} == contract

    def test_each_contract_says_what_its_layers_are(self) -> None:
        assert all(layers[0].title for layers in contracts().values())


class TestPage:
    def test_it_is_what_is_made_of_the_source(self) -> None:
        text = PAGE.read_text("utf-8")
        assert page(text) == text, "run `make docs`"

    def test_its_links_lead_somewhere(self) -> None:
        links = re.findall(r"]\(([^)]+)\)", PAGE.read_text("utf-8"))
        assert len(links) > len(sources()) - len(LINKED)
        assert not [link for link in links if not (PAGE.parent / link).exists()]

    def test_each_module_says_what_it_is_for(self) -> None:
        said = [first_sentence(path) for path in sources()]
        assert all(said)
        assert len(said) == len(set(said))

    def test_the_first_sentence(self, tmp_path: Path) -> None:
        source = tmp_path / "a.py"
        for docstring, expected in {
            "One: a `.log`, of v1.2\nand more. Two.": "One: a `.log`, of v1.2 and more.",
            "Does it?\n\nYes.": "Does it?",
            "No end\n\nHere. There.": "",
        }.items():
            source.write_text(f'"""{docstring}"""')
            assert expected == first_sentence(source)
