"""Draw docs/picture.svg, accuracy against speed-up, from the committed numbers of docs/results/data/picture.json.

python benchmarks/readme_picture.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[1] / "docs"
KINDS = {
    "dense": "dense",
    "calibrated": "gdws, no training",
    "tuned": "gdws, ten epochs of tuning",
    "gdws": "GDWS layers only, no training",
    "pruned": "channel pruning, two minutes of training",
}
PANELS = (("natural", "natural accuracy, %", 78, 84, 60), ("robust", "accuracy under PGD-20, %", 44, 52, 450))
WIDTH, HEIGHT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 800, 400, 84, 320, 200
SLOWEST, FASTEST = 1.0, 4.5
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2937 }
.small { font-size: 11px; fill: #4b5563 }
.title { font-weight: 600; font-size: 15px }
.back { fill: #ffffff } .grid { stroke: #e5e7eb } .axis { stroke: #6b7280 }
.line { fill: none; stroke-width: 2; stroke: #2563eb }
.dense { fill: #6b7280 } .calibrated, .tuned { fill: #2563eb } .gdws { fill: #15803d } .pruned { fill: #c2410c }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .small { fill: #9ca3af }
.back { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #8b949e } .line { stroke: #60a5fa }
.dense { fill: #9ca3af } .calibrated, .tuned { fill: #60a5fa } .gdws { fill: #4ade80 } .pruned { fill: #fb923c }
}
"""


def picture(numbers: dict[str, Any]) -> str:
    """The whole SVG: a panel for each accuracy, a legend, and what lies outside in words."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(numbers['title'])}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="24" y="28">{escape(numbers["title"])}</text>',
        f'<text class="small" x="24" y="47">{escape(numbers["subtitle"])}</text>',
    ]
    for field, title, low, high, left in PANELS:
        parts += _panel(numbers["points"], field, title, low, high, left)
    for index, (kind, text) in enumerate(KINDS.items()):
        x, y = 60 + 270 * (index % 3), HEIGHT - 58 + 20 * (index // 3)
        parts += [_mark(kind, x, y - 4), f'<text x="{x + 12}" y="{y}">{escape(text)}</text>']
    outside = "; ".join(
        f"{point['label']} {point['natural']:.1f} / {point['robust']:.1f} at {point['speedup']:.2f}x"
        for point in numbers["outside"]
    )
    parts += [f'<text class="small" x="60" y="{HEIGHT - 14}">Not in the range: {escape(outside)}.</text>', "</svg>", ""]
    return "\n".join(parts)


def _panel(points: list[dict[str, Any]], field: str, title: str, low: int, high: int, left: int) -> list[str]:
    """Axes, grid and marks of one accuracy, from `low` to `high`, with its left edge at `left`."""

    def across(speedup: float) -> float:
        return round(left + PLOT_WIDTH * (speedup - SLOWEST) / (FASTEST - SLOWEST), 1)

    def down(value: float) -> float:
        return round(TOP + PLOT_HEIGHT * (high - value) / (high - low), 1)

    bottom, right = TOP + PLOT_HEIGHT, left + PLOT_WIDTH
    parts = [f'<text x="{left}" y="{TOP - 12}">{title}</text>']
    for value in range(low, high + 1, 2):
        parts.append(f'<line class="grid" x1="{left}" y1="{down(value)}" x2="{right}" y2="{down(value)}"/>')
        parts.append(f'<text class="small" x="{left - 8}" y="{down(value) + 4}" text-anchor="end">{value}</text>')
    for speedup in (1, 2, 3, 4):
        parts.append(f'<text class="small" x="{across(speedup)}" y="{bottom + 16}" text-anchor="middle">{speedup}x</text>')
    parts.append(f'<line class="axis" x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    untrained = sorted((point["speedup"], point[field]) for point in points if point["kind"] in ("dense", "calibrated"))
    parts.append(f'<polyline class="line" points="{" ".join(f"{across(x)},{down(y)}" for x, y in untrained)}"/>')
    return parts + [_mark(point["kind"], across(point["speedup"]), down(point[field])) for point in points]


def _mark(kind: str, x: float, y: float) -> str:
    """A circle; a diamond for what was trained after it was made smaller; a square for GDWS alone."""
    if kind in ("tuned", "pruned"):
        return f'<path class="{kind}" d="M{x} {y - 7} L{x + 7} {y} L{x} {y + 7} L{x - 7} {y} Z"/>'
    if kind == "gdws":
        return f'<rect class="{kind}" x="{x - 5}" y="{y - 5}" width="10" height="10"/>'
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="5.5"/>'


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    numbers = json.loads((DOCS / "results/data/picture.json").read_text())
    (DOCS / "picture.svg").write_text(picture(numbers))


if __name__ == "__main__":
    main()
