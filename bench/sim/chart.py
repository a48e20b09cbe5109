"""Small SVG charts: bars for each strategy, and lines over the day. No library: two shapes are all that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log10

WIDTH = 860
LABEL, BAR, GAP = 210, 16, 6
LEFT, TOP, HEIGHT, LEGEND = 60, 40, 300, 230
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
DASHES = ("", "6 3", "2 2")


def bars(title: str, values: Mapping[str, float]) -> str:
    """One bar for each name, with its figure."""
    most = max(values.values(), default=0.0) or 1.0
    room = WIDTH - LABEL - 80
    body: list[str] = []
    for place, (name, value) in enumerate(values.items()):
        y = TOP + place * (BAR + GAP)
        width = room * value / most
        body.append(_text(LABEL - 8, y + 12, name, anchor="end"))
        body.append(f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[0]}"/>')
        body.append(_text(LABEL + width + 6, y + 12, f"{value:.3g}"))
    return _svg(title, TOP + len(values) * (BAR + GAP) + 10, body)


def lines(title: str, across: str, series: Mapping[str, Sequence[float]]) -> str:
    """One line for each name, over parts of equal length; the scale is logarithmic."""
    values = [value for line in series.values() for value in line if value > 0]
    low, high = _decade(min(values, default=1.0), up=False), _decade(max(values, default=10.0), up=True)
    room = WIDTH - LEFT - LEGEND
    body = list(_grid(low, high, room))
    for place, (name, line) in enumerate(series.items()):
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        points = " ".join(
            f"{LEFT + room * (at + 0.5) / len(line):.1f},{_height(value, low, high):.1f}"
            for at, value in enumerate(line)
            if value > 0
        )
        style = f'fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"'
        y = TOP + 12 + place * 18
        body.append(f'<polyline points="{points}" {style}/>')
        body.append(f'<path d="M{WIDTH - LEGEND + 12} {y - 4}h24" {style}/>')
        body.append(_text(WIDTH - LEGEND + 42, y, name))
    body.append(_text(LEFT + room / 2, TOP + HEIGHT + 28, across, anchor="middle"))
    return _svg(title, TOP + HEIGHT + 40, body)


def _grid(low: float, high: float, room: float) -> Iterator[str]:
    for power in range(round(low), round(high) + 1):
        y = _height(10.0**power, low, high)
        yield f'<path d="M{LEFT} {y:.1f}h{room}" stroke="#dddddd"/>'
        yield _text(LEFT - 6, y + 4, f"{10.0**power:g}", anchor="end")


def _decade(value: float, *, up: bool) -> float:
    return -(-log10(value) // 1) if up else log10(value) // 1


def _height(value: float, low: float, high: float) -> float:
    return TOP + HEIGHT * (1 - (log10(value) - low) / ((high - low) or 1))


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(title: str, height: float, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif"'
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    name = f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>'
    return "\n".join((f'{head} font-size="12">', ground, name, *body, "</svg>", ""))
