"""Bars on a logarithmic scale, in groups, as plain SVG: no library, and a diff that can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT, _TOP = 860, 130, 120, 62
_BAR, _TITLE, _GAP = 15, 20, 12
_OURS, _FLOOR, _OTHERS = "#2f6fb0", "#9aa0a6", "#d98a3d"
_STYLE = (
    "text{font:11px sans-serif;fill:#333}.head{font-size:15px;font-weight:bold}.title{font-weight:bold}"
    ".name,.note{text-anchor:end}.axis{text-anchor:middle;fill:#777}.grid{stroke:#e4e4e4}"
)


@dataclass(frozen=True)
class Bar:
    """One of a group. role: "ours", "floor" or anything else, for its colour."""

    name: str
    value: float
    role: str = ""


def bars(head: str, unit: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """SVG text. Values are above 0; what is not is drawn as the least there is."""
    values = [bar.value for _, group in groups for bar in group if bar.value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)

    def x(value: float) -> float:
        return _LEFT + (math.log10(max(value, 10.0**low)) - low) * scale

    body: list[str] = []
    y = _TOP
    for title, group in groups:
        body.append(_text(_LEFT, y + 14, title, "title"))
        y += _TITLE
        for bar in group:
            end = max(x(bar.value), _LEFT + 1)
            colour = {"ours": _OURS, "floor": _FLOOR}.get(bar.role, _OTHERS)
            body.append(
                f'<rect x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="{_BAR - 3}" fill="{colour}"/>'
                + _text(_LEFT - 8, y + 10, bar.name, "name")
                + _text(end + 6, y + 10, f"{_number(bar.value)} {unit}", "value")
            )
            y += _BAR
        y += _GAP
    grid = [
        f'<path d="M{x(10.0**decade):.1f} {_TOP - 8}V{y}" class="grid"/>'
        + _text(x(10.0**decade), _TOP - 14, f"{10.0**decade:g} {unit}", "axis")
        for decade in range(low, high + 1)
    ]
    parts = [_text(16, 24, head, "head"), _text(_WIDTH - 16, 24, "logarithmic; less is better", "note"), *grid, *body]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 8}" viewBox="0 0 {_WIDTH} {y + 8}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(text)}</text>'
