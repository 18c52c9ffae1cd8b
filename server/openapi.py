"""The OpenAPI document of a server, made of its table: what is described is what is routed and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from afterlog._version import __version__
from afterlog.api.operation import ARROW
from afterlog.api.problem import MEDIA_TYPE, status_of
from afterlog.api.schema import NEEDED, Shape
from afterlog.api.shapes import NAME_PATTERN
from afterlog.base import errors
from afterlog.base.errors import AfterlogError
from afterlog.server.endpoint import Endpoint

_EVERYWHERE: Final = (400, 401, 403, 413, 429, 500, 503)
"""Statuses that any request may get: see `App`."""
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457. title: the name of the error; next: what to do",
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string"}, "retriable": {"type": "boolean"}, "next": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "retriable", "next"],
}  # fmt: skip


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "afterlog", "version": __version__, "description": "A delayed-message log, served."},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()} {endpoint.path}",
        "parameters": [*_names(endpoint), *(_parameter(name, each) for name, each in endpoint.parameters.items())],
        "responses": _responses(endpoint),
        "security": [] if endpoint.scope is None else [{"token": []}],
        "x-afterlog-scope": None if endpoint.scope is None else endpoint.scope.value,
        "x-afterlog-repeatable": endpoint.repeatable,
        "x-afterlog-errors": sorted(kind.__name__ for kind in endpoint.errors),
    }
    if endpoint.body is not None:
        content: dict[str, Any] = {"application/json": {"schema": endpoint.body.told()}}
        if endpoint.arrow is not None:
            query = ", ".join(endpoint.arrow)
            content[endpoint.data_type] = {
                "schema": {"type": "string", "format": "binary", "description": f"in the query: {query}"}
            }
        told["requestBody"] = {"required": True, "content": content}
    elif endpoint.method != "GET":
        told["parameters"].append(
            {"name": "X-Afterlog", "in": "header", "required": True, "schema": {"const": "1"},
             "description": "what no form of a page can set"}
        )  # fmt: skip
    return told


def _names(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": NAME_PATTERN}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _parameter(name: str, shape: Shape) -> dict[str, Any]:
    schema = shape.told()
    if isinstance(schema.get("type"), list):  # in a query nothing is null: it is left out
        schema["type"] = next(kind for kind in schema["type"] if kind != "null")
    return {"name": name, "in": "query", "required": shape.default is NEEDED, "schema": schema}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.answer is None:
        said: dict[str, Any] = {"204": {"description": "done"}}
    else:
        content: dict[str, Any] = {endpoint.media_type.partition(";")[0]: {"schema": endpoint.answer}}
        if endpoint.gives_arrow:
            content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
        said = {"200": {"description": "done", "content": content}}
    for status in sorted({*_EVERYWHERE, *map(_status, endpoint.errors), *_implied(endpoint)}):
        schema = {"$ref": "#/components/schemas/Problem"}
        said[str(status)] = {"description": "see title", "content": {MEDIA_TYPE: {"schema": schema}}}
    return said


def _implied(endpoint: Endpoint) -> set[int]:
    """Of what has a topic, whatever it does: it may be gone, full, or at odds with what is there."""
    return {404, 405, 409, 410, 416, 501, 507} if "{topic}" in endpoint.path else {404, 405, 501}


def _status(kind: type[AfterlogError]) -> int:
    """That of every error of a kind."""
    if issubclass(kind, errors.OffsetOutOfRange):
        return 416
    return int(status_of(kind.__new__(kind)))
