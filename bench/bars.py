"""Small horizontal bar charts as SVG; bars begin at 0 and carry their figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 720
LEFT = 190
BAR = 11
COLOURS = ("#1565c0", "#ef6c00", "#2e7d32", "#6a1b9a")


class Group(NamedTuple):
    """Bars that are compared with each other, on one scale.

    Attributes:
        title: What they show.
        bars: By name of the row, and by series (one colour each), the figure.
    """

    title: str
    bars: dict[str, dict[str, float]]


def bar_chart(unit: str, groups: Sequence[Group]) -> str:
    """A picture of some groups, one below the other.

    Args:
        unit: What the figures are; stands at the top.
        groups: What to show.
    """
    series = list(dict.fromkeys(name for g in groups for row in g.bars.values() for name in row))
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(series)}
    parts = [f'<text x="10" y="20" font-weight="bold">{escape(unit)}</text>']
    for number, name in enumerate(series):
        x = 420 + 150 * number
        parts.append(f'<rect x="{x}" y="11" width="10" height="10" fill="{colour[name]}"/>')
        parts.append(f'<text x="{x + 15}" y="20">{escape(name)}</text>')
    y = 48
    for group in groups:
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(group.title)}</text>')
        y += 8
        top = max((value for row in group.bars.values() for value in row.values()), default=0) or 1
        for name, row in group.bars.items():
            middle = y + len(row) * BAR / 2 + 4
            parts.append(
                f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
            )
            for label, value in row.items():
                length = max(1.0, value / top * (WIDTH - LEFT - 70))
                parts.append(
                    f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 1}" '
                    f'fill="{colour[label]}"/>'
                )
                parts.append(
                    f'<text x="{LEFT + length + 5:.0f}" y="{y + 9}" font-size="10">'
                    f"{_figure(value)}</text>"
                )
                y += BAR
            y += 6
        y += 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y - 10}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{y - 10}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
