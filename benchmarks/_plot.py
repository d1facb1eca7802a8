"""Bar charts as SVG, without a background, and with colours for light and dark mode."""

from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path

_STYLE = """<style>
text { fill: #444 } .title { font-weight: 600 } .axis { stroke: #999 } .bar { fill: #a3a3a3 } .ours { fill: #2563eb }
@media (prefers-color-scheme: dark) {
text { fill: #ccc } .axis { stroke: #777 } .bar { fill: #737373 } .ours { fill: #60a5fa } }
</style>"""
_LEFT, _WIDE, _ROW, _HEAD = 190, 430, 22, 34


def draw_bars(
    path: Path, unit: str, panels: Mapping[str, Mapping[str, float]], *, ours: Collection[str] = (), most: float = 4.0
) -> None:
    """Draw a panel of horizontal bars for each title; a bar longer than `most` times the panel's first is cut, and says so."""
    parts: list[str] = []
    top = 0
    for title, values in panels.items():
        full = min(max(values.values()), most * next(iter(values.values()))) or 1.0
        parts.append(f'<text class="title" x="10" y="{top + 20}">{escape(title)}, {escape(unit)}</text>')
        for position, (name, value) in enumerate(values.items()):
            y = top + _HEAD + position * _ROW
            wide = min(value / full, 1.0) * _WIDE
            colour = "ours" if name in ours else "bar"
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
            if value > full:
                # Two pieces with a slanting gap show that the bar is cut.
                parts.append(f'<path class="{colour}" d="M{_LEFT},{y}h{wide - 26:.1f}l-6,16H{_LEFT}z"/>')
                parts.append(f'<path class="{colour}" d="M{_LEFT + wide - 20:.1f},{y}h20v16h-26z"/>')
            else:
                parts.append(f'<rect class="{colour}" x="{_LEFT}" y="{y}" width="{wide:.1f}" height="16"/>')
            parts.append(f'<text x="{_LEFT + wide + 6:.1f}" y="{y + 13}">{_number(value)}</text>')
        bottom = top + _HEAD + len(values) * _ROW
        parts.append(f'<path class="axis" d="M{_LEFT},{top + _HEAD - 4}V{bottom}"/>')
        top = bottom + 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {top}" font-family="system-ui, sans-serif" font-size="12">'
    path.write_text("\n".join([head, _STYLE, *parts, "</svg>"]) + "\n", encoding="utf-8")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
