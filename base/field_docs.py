"""Docstrings of fields, for `help`: Python keeps no text below a field, but the source has it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

Documented = TypeVar("Documented", bound=type)


def shows_field_docs(cls: Documented) -> Documented:
    """A decorator: the docstring of the class goes on with its fields, and the text below each.

    The source is read when somebody asks, and where it is not there the docstring is what it was.
    """
    cls.__doc__ = FieldDocs(cls.__doc__ or "")  # type: ignore[assignment]  # a descriptor, which gives text
    return cls


class FieldDocs:
    """The docstring of a class, made when it is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):
            return self._text
        lines = [f"{field}\n{textwrap.indent(text, '    ')}" for field, text in _fields(ast.parse(source))]
        return "\n\n".join([self._text, *lines])


def _fields(source: ast.Module) -> Iterator[tuple[str, str]]:
    """Each field with a text below it, as it is written, and the text."""
    [definition] = source.body
    assert isinstance(definition, ast.ClassDef)
    for above, below in pairwise(definition.body):
        match above, below:
            case ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield ast.unparse(above), inspect.cleandoc(text)
