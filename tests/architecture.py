"""The source as a whole: which modules there are, in which layers, and what their first sentences say.

    python -m tests.architecture        writes what docs/architecture.md has of it (`make docs`)

The layers are those of the import contracts in setup.cfg, from top to bottom; a comment there is the name of the layers
below it. What a module is for is the first sentence of its docstring, what a folder is for that of its `__init__`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "afterlog"
LINKED = sorted(path.name for path in PACKAGE.iterdir() if path.is_symlink())
PAGE = ROOT / "docs" / "architecture.md"


class Layer(NamedTuple):
    """One line of an import contract."""

    title: str
    """Of this layer, and of those below it that have none of their own."""
    modules: tuple[str, ...]


def sources() -> list[Path]:
    """Each source of the package once, where it is and not behind its link."""
    return sorted([*PACKAGE.glob("*.py"), *(path for name in LINKED for path in (ROOT / name).rglob("*.py"))])


def contracts() -> dict[str, list[Layer]]:
    """The layers of each import contract, by its name: `layers` for all, a folder's for what is inside."""
    found: dict[str, list[Layer]] = {}
    title = name = ""
    for line in (ROOT / "setup.cfg").read_text("utf-8").splitlines():
        if section := re.fullmatch(r"\[importlinter:contract:(\w+)]", line):
            name, title = section[1], ""
            found[name] = []
        elif name and line.startswith("    #"):
            title = line.strip(" #")
        elif name and line.startswith("    "):
            found[name].append(Layer(title, tuple(re.split(r"[\s|:]+", line.strip()))))
            title = ""
    return found


def first_sentence(path: Path) -> str:
    """Of the docstring of a module."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    found = re.match(r".+?[.?](?=\s|$)", paragraph)
    return found[0] if found else ""


def diagram() -> str:
    """The folders, and the modules beside them, from top to bottom."""
    rows = []
    for title, modules in contracts()["layers"]:
        names = [_name(module) for module in modules]
        rows.append(("  ".join(f"{name}/" if name in LINKED else name for name in names), title))
    width = max(len(names) for names, _ in rows) + 2
    return "\n".join(f"    {names:<{width}}{title}" for names, title in rows)


def listing() -> str:
    """Each module with its first sentence, by folder and layer."""
    layers = contracts()
    names = [_name(module) for layer in layers["layers"] for module in layer.modules]
    beside = Layer("", tuple(name for name in names if name not in LINKED))
    sections = [_section(ROOT / name, layers[name]) for name in names if name in LINKED]
    return "\n\n".join([*sections, _section(PACKAGE, [beside])])


def _section(folder: Path, layers: list[Layer]) -> str:
    lines = [f"### {folder.name}/", "", first_sentence(folder / "__init__.py"), ""]
    for title, modules in layers:
        if title:
            lines += ([] if lines[-1] == "" else [""]) + [f"{title}:", ""]
        for module in modules:
            lines += _items(folder / module) if (folder / module).is_dir() else [_item(folder / f"{module}.py")]
    return "\n".join(lines)


def _item(path: Path) -> str:
    return f"- [{path.name}](../{path.relative_to(ROOT)}): {first_sentence(path)}"


def _items(folder: Path) -> list[str]:
    """Of a folder that is one module to those beside it."""
    head = folder / "__init__.py"
    said = f"- [{folder.name}/](../{folder.relative_to(ROOT)}): {first_sentence(head)}"
    return [said, *(f"    {_item(path)}" for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py")]


def _name(module: str) -> str:
    """`log` of `afterlog.log`."""
    return module.removeprefix("afterlog.")


def page(text: str) -> str:
    """The page with what is made of the source put in anew: all between a mark and the end of what is made."""
    for name, made in {"diagram": diagram(), "files": listing()}.items():
        begin, end = f"<!-- made by `make docs`: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


def defined_names(path: Path) -> Iterator[str]:
    """The classes, type aliases and type variables that a module defines, without the underscore of the private."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ClassDef(name=name):
                yield name.lstrip("_")
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]) if _is_type(name):
                yield name.lstrip("_")


def _is_type(name: str) -> bool:
    """Whether a name is written as those of types are, and not as a constant."""
    return re.match(r"_*[A-Z][A-Z0-9]*[a-z]", name) is not None


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
