"""The demo's report: one HTML file with two pictures, drawn as SVG without any library.

Delay by carrier and hour as a grid of colours; records a second over time with the kills marked.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CELL = 26
WINDOW_SECONDS = 4.0
GREY = "#f0f0ee"


@dataclass(frozen=True, slots=True)
class Sample:
    """Progress at one moment: seconds since the start, and records through each stage."""

    at: float
    fed: int
    processed: int
    aggregated: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL: when, and what it hit."""

    at: float
    target: str


def _colour(minutes: float) -> str:
    """White at no delay to deep red at 45 minutes and more; blue when early."""
    share = max(-1.0, min(1.0, minutes / 45))
    if share < 0:
        return f"rgb({round(255 + 120 * share)},{round(255 + 70 * share)},255)"
    return f"rgb({round(255 - 75 * share)},{round(250 - 210 * share)},{round(240 - 210 * share)})"


def heat_map(by_hour: Mapping[tuple[str, int], tuple[int, int]], names: Mapping[str, str]) -> str:
    """Mean delay by carrier (rows) and scheduled hour (columns)."""
    carriers = sorted({carrier for carrier, _ in by_hour})
    hours = range(5, 24)
    left = 190
    parts = [
        f'<svg viewBox="0 0 {left + CELL * len(hours) + 10} {CELL * len(carriers) + 76}" '
        'role="img" aria-label="Mean departure delay by carrier and hour">'
    ]
    for row, carrier in enumerate(carriers):
        y = row * CELL
        name = html.escape(names.get(carrier, carrier))
        parts.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{name}</text>')
        for column, hour in enumerate(hours):
            flights, delay = by_hour.get((carrier, hour), (0, 0))
            fill = _colour(delay / flights) if flights else GREY
            tip = (
                f"{name}, {hour}:00: {delay / flights:.1f} min, {flights} flights"
                if flights
                else ""
            )
            parts.append(
                f'<rect x="{left + column * CELL}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" '
                f'rx="3" fill="{fill}"><title>{tip}</title></rect>'
            )
    for column, hour in enumerate(hours):
        x = left + column * CELL + CELL / 2
        parts.append(
            f'<text x="{x}" y="{CELL * len(carriers) + 18}" text-anchor="middle">{hour}</text>'
        )
    y = CELL * len(carriers) + 44
    for step, minutes in enumerate((-10, 0, 10, 20, 30, 45)):
        x = left + step * 72
        parts.append(
            f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{_colour(minutes)}"/>'
            f'<text x="{x + 19}" y="{y + 12}">{minutes} min</text>'
        )
    parts.append(
        f'<rect x="{left + 432}" y="{y}" width="14" height="14" rx="3" fill="{GREY}"/>'
        f'<text x="{left + 451}" y="{y + 12}">none</text>'
    )
    return "".join([*parts, "</svg>"])


def _rates(samples: Sequence[Sample], stage: str) -> list[tuple[float, float]]:
    """Records a second at each sample, over the seconds before it: batches are no spikes."""
    points = []
    first = 0
    for last, sample in enumerate(samples):
        while sample.at - samples[first].at > WINDOW_SECONDS:
            first += 1
        begin = samples[min(first, max(last - 1, 0))]
        seconds = max(sample.at - begin.at, 0.001)
        points.append((sample.at, (getattr(sample, stage) - getattr(begin, stage)) / seconds))
    return points


def throughput(samples: Sequence[Sample], kills: Sequence[Kill]) -> str:
    """Records a second of the three stages over time; kills as dashed lines."""
    width, height, left, top = 900, 260, 60, 20
    stages = (("fed", "#4c78a8"), ("processed", "#54a24b"), ("aggregated", "#e45756"))
    lines = {stage: _rates(samples, stage) for stage, _ in stages}
    peak = max((rate for points in lines.values() for _, rate in points), default=1.0) or 1.0
    end = max((s.at for s in samples), default=1.0) or 1.0

    def x(at: float) -> float:
        return left + at / end * width

    def y(rate: float) -> float:
        return top + height - rate / peak * height

    parts = [
        f'<svg viewBox="0 0 {left + width + 20} {top + height + 50}" role="img" '
        'aria-label="Records a second over time, with the kills">'
    ]
    for share in (0, 0.5, 1):
        level = y(peak * share)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{level}" y2="{level}" class="g"/>')
        parts.append(
            f'<text x="{left - 6}" y="{level + 4}" text-anchor="end">{peak * share:,.0f}</text>'
        )
    for stage, colour in stages:
        path = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in lines[stage])
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
    for number, kill in enumerate(kills):
        at = x(kill.at)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{top}" y2="{top + height}" class="k"/>')
        parts.append(
            f'<text x="{at + 3}" y="{top + 12 + 14 * (number % 4)}">'
            f"kill: {html.escape(kill.target)}</text>"
        )
    for index, (stage, colour) in enumerate(stages):
        place = left + index * 130
        parts.append(
            f'<rect x="{place}" y="{top + height + 28}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{place + 18}" y="{top + height + 38}">{stage}</text>'
        )
    parts.append(
        f'<text x="{left + width}" y="{top + height + 18}" text-anchor="end">{end:.0f} s</text>'
    )
    return "".join([*parts, "</svg>"])


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2rem auto;padding:0 1rem;color:#222}
svg{width:100%;height:auto;font:12px system-ui,sans-serif} svg text{fill:#444}
.g{stroke:#ddd}.k{stroke:#222;stroke-dasharray:4 3}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.25rem .9rem;border-bottom:1px solid #ddd}
th{text-align:left;font-weight:600}td{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#2a7d2a}.bad{color:#b00020}
"""


def write_report(
    path: Path,
    rows: Sequence[tuple[str, str]],
    ok: bool,
    pictures: Sequence[tuple[str, str]],
) -> None:
    """Write the report.

    Args:
        path: Where to.
        rows: Lines of the table: what, and the figure; the first is how many flights there were.
        ok: Whether exactly-once held.
        pictures: Title and SVG of each picture.
    """
    verdict = (
        '<p class="ok">Every flight arrived exactly once.</p>'
        if ok
        else '<p class="bad">Records were lost or repeated: see the table.</p>'
    )
    table = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    body = "".join(f"<h2>{html.escape(title)}</h2>{svg}" for title, svg in pictures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>onceflow: flights</title>'
        f"<style>{STYLE}</style><h1>{rows[0][1]} flights, exactly once</h1>{verdict}"
        f"<table>{table}</table>{body}</html>"
    )
