"""The paper's figures as SVG, of records alone, made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gdws.reproduce.records import Record, value_of
from gdws.reproduce.tables import printed

WIDTH, PANEL_HEIGHT, TOP, LEFT, GAP, BOTTOM = 800, 220, 64, 56, 70, 92
COLORS = {"base": "#6b7280", "GDWS": "#15803d", "auto": "#2563eb", "ADMM": "#c2410c", "HYDRA": "#9333ea", "GDWS-U": "#ca8a04"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2937 } .small { font-size: 11px; fill: #4b5563 }
.title { font-weight: 600; font-size: 15px } .back { fill: #ffffff } .grid { stroke: #e5e7eb } .axis { stroke: #6b7280 }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .small { fill: #9ca3af } .back { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #8b949e }
}
"""


@dataclass(frozen=True)
class Series:
    """Points of one kind; joined: by a line."""

    name: str
    color: str
    points: tuple[tuple[float, float], ...]
    joined: bool = False


@dataclass(frozen=True)
class Panel:
    """A plot; ticks: words under whole numbers instead of numbers."""

    title: str
    across: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()


def figures(records: dict[str, Record]) -> dict[str, str]:
    """Each figure of the paper that there are records for, as SVG by its name."""
    found = {
        "figure1": ("VGG-16 on CIFAR-10: accuracy under attack, %", list(_speed_and_time(records))),
        "figure4": ("GDWS-N and GDWS-U, VGG-16 on CIFAR-10", list(_uniform(records))),
        "figure5": ("Share of filters that are all zero after HYDRA, %", list(_sparsity(records))),
    }
    return {name: picture(title, panels) for name, (title, panels) in found.items() if panels}


def picture(title: str, panels: Sequence[Panel]) -> str:
    """The whole SVG: panels side by side, two in a row, and a legend."""
    rows = math.ceil(len(panels) / 2)
    height = TOP + rows * (PANEL_HEIGHT + BOTTOM)
    names = {series.name: series.color for panel in panels for series in panel.series}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="24" y="26">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + (number % 2) * (_width() + GAP), TOP + (number // 2) * (PANEL_HEIGHT + BOTTOM))
    for number, (name, color) in enumerate(names.items()):
        x, y = LEFT + 120 * (number % 6), height - 14 - 16 * (number // 6)
        parts += [_mark(color, x, y - 4), f'<text class="small" x="{x + 10}" y="{y}">{escape(name)}</text>']
    return "\n".join([*parts, "</svg>", ""])


def _width() -> float:
    return (WIDTH - 2 * LEFT - GAP + 20) / 2


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    points = [point for series in panel.series for point in series.points]
    (x_low, x_high, x_ticks), (y_low, y_high, y_ticks) = (_axis([point[axis] for point in points]) for axis in (0, 1))
    if panel.ticks:
        x_low, x_high, x_ticks = -0.5, len(panel.ticks) - 0.5, [float(place) for place in range(len(panel.ticks))]
    bottom, right = top + PANEL_HEIGHT, left + _width()

    def across(x: float) -> float:
        return round(left + (right - left) * (x - x_low) / (x_high - x_low), 1)

    def down(y: float) -> float:
        return round(top + PANEL_HEIGHT * (y_high - y) / (y_high - y_low), 1)

    yield f'<text x="{left}" y="{top - 10}">{escape(panel.title)}</text>'
    for y in y_ticks:
        yield f'<line class="grid" x1="{left}" y1="{down(y)}" x2="{right}" y2="{down(y)}"/>'
        yield f'<text class="small" x="{left - 6}" y="{down(y) + 4}" text-anchor="end">{y:g}</text>'
    for x in x_ticks:
        text, turned = f"{x:g}", ""
        if panel.ticks:
            text, turned = panel.ticks[round(x)], f' transform="rotate(-45 {across(x)} {bottom + 12})"'
        yield (
            f'<text class="small" x="{across(x)}" y="{bottom + 15}" text-anchor="{"end" if turned else "middle"}"{turned}>'
            + (f"{escape(text)}</text>")
        )
    yield f'<line class="axis" x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
    yield f'<text class="small" x="{right}" y="{top - 10}" text-anchor="end">{escape(panel.across)}</text>'
    for series in panel.series:
        if series.joined:
            path = " ".join(f"{across(x)},{down(y)}" for x, y in series.points)
            yield f'<polyline fill="none" stroke="{series.color}" stroke-width="2" points="{path}"/>'
        yield from (_mark(series.color, across(x), down(y)) for x, y in series.points)


def _axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """From a round number to a round number, with round ones between: steps of 1, 2 or 5 times a power of ten."""
    low, high = min(values), max(values)
    rough = max(high - low, 1e-3 * max(abs(high), 1.0)) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = last if last > first else first + 1
    return first * step, last * step, [round(number * step, 10) for number in range(first, last + 1)]


def _mark(color: str, x: float, y: float) -> str:
    return f'<circle fill="{color}" cx="{x}" cy="{y}" r="4"/>'


def _speed_and_time(records: dict[str, Record]) -> Iterator[Panel]:
    """The paper's plots and ours: another machine, so another axis."""
    rows = list(printed("figure1"))
    ours = {row.name: records[row.name] for row in rows if row.name in records}
    beside = [record for record in records.values() if record["beside"] in ours and "figure1" in record["tables"]]
    for quantity, across in (("fps", "frames per second"), ("minutes", "minutes, from nothing")):
        theirs = [(_kind(row.name), row.numbers[quantity], row.numbers["robust"]) for row in rows if quantity in row.numbers]
        found = [
            (_kind(record["name"]), value_of(record, "pgd", quantity), value_of(record, "pgd", "robust"))
            for record in (*ours.values(), *(record for record in beside if record["match"] == "parameters"))
        ]
        measured = [(kind, x, y) for kind, x, y in found if x is not None and y is not None]
        if measured:
            yield Panel(
                "the paper (Jetson Xavier)" if quantity == "fps" else "the paper (GTX 1080 Ti)", across, _by_kind(theirs)
            )
            yield Panel("here", across, _by_kind(measured))


def _uniform(records: dict[str, Record]) -> Iterator[Panel]:
    """Multiply-adds that are left of each layer, and accuracies against speed."""
    chosen = [record for record in records.values() if "figure4" in record["tables"] and not record["tuned"]]
    kinds = {"base": "base", "paper": "GDWS", "uniform": "GDWS-U"}
    chosen = [record for record in chosen if record["method"] in kinds and record["recipe"] != "ours"]
    pairs = [
        (record, other) for record in chosen for other in chosen if other["beside"] == record["name"] and "layers" in other
    ]
    if pairs:
        names = tuple(pairs[-1][0]["layers"])
        left = [
            tuple((float(at), 100 * part["macs"] / part["dense macs"]) for at, part in enumerate(record["layers"].values()))
            for record in pairs[-1]
        ]
        bars = tuple(Series(name, COLORS[name], points, True) for name, points in zip(("GDWS", "GDWS-U"), left, strict=True))
        yield Panel("multiply-adds left, %", f"{pairs[-1][0]['paper'].get('mb', 0):g} MB", bars, names)
    for column in ("natural", "robust"):
        points = [
            (kinds[record["method"]], x, y)
            for record in chosen
            if (x := value_of(record, "pgd", "fps")) is not None and (y := value_of(record, "pgd", column)) is not None
        ]
        if points:
            yield Panel(f"{column} accuracy, %", "frames per second", _by_kind(points))


def _sparsity(records: dict[str, Record]) -> Iterator[Panel]:
    chosen = [record for record in records.values() if "figure5" in record["tables"] and "filter sparsity" in record]
    colors = list(COLORS.values())
    for base in dict.fromkeys(record["compared with"] for record in chosen):
        own = sorted((record for record in chosen if record["compared with"] == base), key=lambda record: str(record["title"]))
        series = tuple(
            Series(
                record["title"].rpartition("p = ")[2].rstrip(")"),
                colors[number],
                tuple((float(at), 100 * share) for at, share in enumerate(record["filter sparsity"].values())),
                True,
            )
            for number, record in enumerate(own)
        )
        yield Panel(base, "layer", series)


def _kind(name: str) -> str:
    kinds = {".paper-": "GDWS", ".auto-": "auto", ".hydra-": "HYDRA", ".admm-": "ADMM"}
    return next((kind for part, kind in kinds.items() if part in name), "base")


def _by_kind(points: Sequence[tuple[str, float, float]]) -> tuple[Series, ...]:
    kinds = dict.fromkeys(kind for kind, _, _ in points)
    return tuple(Series(kind, COLORS[kind], tuple((x, y) for own, x, y in points if own == kind)) for kind in kinds)
