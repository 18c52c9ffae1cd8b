"""Draws the memory table: bars on a logarithmic scale, one for each structure in each workload, as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

MIB = 1 << 20
_COLOURS = {
    "heap": "#9aa0a6",
    "published": "#d98a3d",
    "memory": "#8fb3d9",
    "buckets": "#2f6fb0",
    "time-buckets": "#3a9a6b",
}
_WIDTH, _LEFT, _RIGHT, _TOP = 860, 120, 110, 62
_BAR, _TITLE, _GAP = 15, 20, 12
_LEAST_MIB = 0.1


class Titled(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def published_mib(self) -> float | None: ...


def picture(cells: Sequence[Mapping[str, Any]], workloads: Mapping[str, Titled]) -> str:
    """SVG text. A tick stands at the published figure of a workload that has one."""
    entries = cells[0]["entries"]
    decades = range(-1, max(math.ceil(math.log10(max(_mib(cell) for cell in cells))), 0) + 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / (decades[-1] - decades[0])

    def x(mib: float) -> float:
        return _LEFT + (math.log10(max(mib, _LEAST_MIB)) - decades[0]) * scale

    body: list[str] = []
    y = _TOP
    for name, workload in workloads.items():
        body.append(_text(_LEFT, y + 14, workload.title, "title"))
        y += _TITLE
        top = y
        for cell in (cell for cell in cells if cell["workload"] == name):
            end = max(x(_mib(cell)), _LEFT + 1)
            body.append(
                f'<rect x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="{_BAR - 3}"'
                f' fill="{_COLOURS[cell["structure"]]}"/>'
            )
            body.append(_text(_LEFT - 8, y + 10, cell["structure"], "name"))
            body.append(_text(end + 6, y + 10, f"{_mib(cell):,.2f} MiB", "value"))
            y += _BAR
        if workload.published_mib is not None:
            tick = x(workload.published_mib)
            body.append(f'<path d="M{tick:.1f} {top - 2}V{y}" class="tick"/>')
        y += _GAP
    grid = [
        f'<path d="M{x(10.0**decade):.1f} {_TOP - 8}V{y}" class="grid"/>'
        + _text(x(10.0**decade), _TOP - 14, f"{10.0**decade:g} MiB", "axis")
        for decade in decades
    ]
    head = _text(16, 24, f"Private memory of {entries:,} pending entries, logarithmic", "head")
    legend = _text(_WIDTH - 16, 24, "dashed: the published figure", "note")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 8}" viewBox="0 0 {_WIDTH} {y + 8}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join([head, legend, *grid, *body]) + "\n</svg>\n"
    )


_STYLE = (
    "text{font:11px sans-serif;fill:#333}.head{font-size:15px;font-weight:bold}.title{font-weight:bold}"
    ".name,.note{text-anchor:end}.axis{text-anchor:middle;fill:#777}.grid{stroke:#e4e4e4}"
    ".tick{stroke:#b00020;stroke-width:1.5;stroke-dasharray:3 2}"
)


def _mib(cell: Mapping[str, Any]) -> float:
    return float(cell["private_bytes"]) / MIB


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(text)}</text>'
