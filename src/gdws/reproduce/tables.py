"""The paper's tables with its numbers beside ours, of records alone: as Markdown and as HTML.

A change beside a base is of the same images; its 95 % interval and p-value are of the images that changed (McNemar, exact).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations

from gdws.reproduce.paper import LEADERBOARD, Row, Table, paper
from gdws.reproduce.place import UNREACHED
from gdws.reproduce.records import Record, value_of

COLUMNS = {
    "pgd": ("natural", "robust"),
    "imagenet": ("natural", "top-5 natural", "robust", "top-5 robust"),
    "union": ("natural", "linf", "l1", "l2", "union"),
    "classic": ("fgsm", "bim", "deepfool"),
    "autoattack": ("natural", "autoattack"),
    "none": (),
}
"""Of each evaluation, as the paper prints them."""
MATCHES = {"parameters": "the same size", "macs": "the same MACs", "speed": "the same speed", "removed": "fewer weights"}
NOTHING, UNEXPLAINED = "–", "Why is not known."
NAMED = 6
"""Pairs of rows that are listed at most."""
OUTSIDE = 0.05
"""Points that the paper's rounding may move a change."""


@dataclass(frozen=True)
class Printed:
    """A row of a table of the paper: the name of its record, its title and its numbers."""

    name: str
    title: str
    numbers: dict[str, float]
    size: str = ""


@dataclass(frozen=True)
class Grid:
    """A table as it is shown: a head, rows of cells, and sentences under it."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def printed(table: str) -> Iterator[Printed]:
    """The rows of a table, in the paper's order."""
    for base in paper().base:
        if table in base.tables:
            yield Printed(base.name, base.title, base.paper)
        yield from _compressed(table, base.name, base.title, base.gdws)
        for row in base.pruned:
            name, title = f"{base.name}.{row.method}-{row.keep:g}", f"{base.title}, p = {100 * (1 - row.keep):.0f} %"
            if table in row.tables:
                yield Printed(name, title, row.paper, row.size)
            yield from _compressed(table, name, title, row.gdws)


def _compressed(table: str, source: str, title: str, rows: Sequence[Row]) -> Iterator[Printed]:
    for row in rows:
        if table not in row.tables:
            continue
        name, text = f"{source}.paper-size-{row.paper['mb']:g}", f"{title} + GDWS"
        yield Printed(name, text, row.paper, row.size)
        if row.tuned:
            yield Printed(f"{name}.tuned", f"{text}, fine-tuned", row.tuned)


def grid(name: str, records: dict[str, Record], notes: dict[str, str]) -> Grid:
    """A table of the paper with ours beside it. notes: sentences on rows that differ, by name."""
    table = paper().table[name]
    head = ("network", *(f"{column}, {whose}" for column in COLUMNS[table.evaluation] for whose in ("paper", "here")))
    head += ("MB, paper", "MB, here", "β, paper", "β, here", "MACs left", "FPS, paper", "FPS, here")
    rows, told = list[tuple[str, ...]](), list[str]()
    for row in printed(name):
        record = records.get(row.name)
        rows.append(_cells(row.title, table, row.numbers, record))
        beside = [other for other in records.values() if other["beside"] == row.name and name in other["tables"]]
        rows += [_cells(_described(other), table, {}, other) for other in beside if not other["paper"]]
        if (own := records.get(_with_our_recipe(row.name))) is not None and name in own["tables"]:
            rows.append(_cells(f"{row.title}, our recipe", table, {}, own))
        if row.size:
            told.append(f"{_title(row)}: the size is {row.size}.")
        if record is not None and (difference := differs(table, row, record)):
            told.append(f"{_title(row)} {difference} {notes.get(row.name, UNEXPLAINED)}")
    return Grid(name, table.title, head, tuple(rows), (*told, *_orders(name, table, records)))


def leaderboard(records: dict[str, Record]) -> Grid:
    """Ours beside public entries, by the share of the weights that is removed."""
    rows, chosen = list[tuple[str, ...]](), [record for record in records.values() if LEADERBOARD in record["tables"]]
    for base in paper().base:
        name = base.named(base.leaderboard.recipe)
        first = [record for record in chosen if record["name"] == name]
        rows += [(f"{base.title}, dense", "0 %", *_board_cells(record)) for record in first]
        for removed in base.leaderboard.shares:
            for entry in paper().entry:
                for share, natural, robust in entry.rows if entry.network == base.name else ():
                    if share == removed:
                        cells = (f"{natural:.2f}", f"{robust:.2f}", NOTHING, NOTHING, NOTHING)
                        rows.append((f"{base.title}: {entry.title}", f"{100 * removed:.0f} %", *cells))
            start = f"{name}.auto-removed-{removed:g}"
            for record in chosen:
                if record["name"].startswith(start):
                    title = f"{base.title}: auto{', tuned' if record['tuned'] else ''}"
                    rows.append((title, f"{100 * removed:.0f} %", *_board_cells(record)))
    head = ("network", "fewer weights", "natural", "AutoAttack", "images", "MB", "FPS here")
    return Grid(LEADERBOARD, paper().table[LEADERBOARD].title, head, tuple(rows), ())


def _board_cells(record: Record) -> tuple[str, ...]:
    found = record.get("judged", {}).get("autoattack", {})
    accuracies = (_number(value_of(record, "autoattack", name), 2) for name in COLUMNS["autoattack"])
    return (*accuracies, str(found.get("images", NOTHING)), *(_number(value_of(record, "", name)) for name in ("mb", "fps")))


def _cells(title: str, table: Table, numbers: dict[str, float], record: Record | None) -> tuple[str, ...]:
    """One row: the paper's numbers, and ours with the change beside the network that it was made of."""
    if record is not None and UNREACHED in record:
        title = f"{title} (out of reach)"
    made = record or {}

    def here(column: str) -> str:
        value = value_of(made, table.evaluation, column)
        change = made.get("paired", {}).get(table.evaluation, {}).get(column)
        beside = "" if change is None else f" ({change['points']:+.2f})"
        return f"{_number(value, 2)}{beside}"

    accuracies = [text for column in COLUMNS[table.evaluation] for text in (_number(numbers.get(column), 2), here(column))]
    sizes = [text for name in ("mb", "beta") for text in (_number(numbers.get(name)), _number(value_of(made, "", name)))]
    macs, fps = value_of(made, "", "fraction of macs"), value_of(made, "", "fps")
    return (title, *accuracies, *sizes, _number(macs, 3), _number(numbers.get("fps")), _number(fps))


def _described(record: Record) -> str:
    """What stands beside a row of the paper."""
    if record["method"] == "uniform":
        return "· GDWS-U at the same MACs"
    return f"· auto at {MATCHES[record['match']]}{', tuned' if record['tuned'] else ''}"


def _with_our_recipe(name: str) -> str:
    base, dot, rest = name.partition(".")
    return f"{base}-ours{dot}{rest}"


def _number(value: float | None, digits: int | None = None) -> str:
    """A number as the paper prints it; β as it is."""
    if value is None:
        return NOTHING
    if digits is None and abs(value) >= 1000:
        digits = 0
    return f"{value:.4g}" if digits is None else f"{value:.{digits}f}"


def differs(table: Table, row: Printed, record: Record) -> str:
    """Where the paper's change beside its base lies outside the 95 % interval of ours; of a base, where its accuracy does."""
    found = []
    for column in COLUMNS[table.evaluation]:
        theirs = row.numbers.get(column)
        own = record.get("judged", {}).get(table.evaluation, {}).get("columns", {}).get(column)
        if theirs is None or own is None:
            continue
        base = _printed_numbers(record["compared with"])
        change = record["paired"].get(table.evaluation, {}).get(column)
        if not record["compared with"]:
            (low, high), value = own["interval"], theirs
        elif change is not None and column in base:
            (low, high), value = change["interval"], theirs - base[column]
        else:
            continue
        if not low - OUTSIDE <= value <= high + OUTSIDE:
            sign = "+" if record["compared with"] else ""
            found.append(f"{column} {value:{sign}.2f} in the paper, {low:{sign}.2f} to {high:{sign}.2f} here")
    what = "changes by" if record["compared with"] else "has"
    return f"{what} {'; '.join(found)}." if found else ""


def _printed_numbers(name: str) -> dict[str, float]:
    """What the paper prints of a network, in whichever table."""
    rows = (row for table in paper().table for row in printed(table) if row.name == name)
    found = next(rows, None)
    return {} if found is None else found.numbers


def markdown(shown: Grid) -> str:
    """The table for a page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (shown.head, ["---"] * len(shown.head), *shown.rows)]
    notes = [f"- {note}" for note in shown.notes]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])


def html(shown: Grid) -> str:
    """The table for a browser."""
    rows = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in shown.rows)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in shown.head)
    notes = "".join(f"<li>{escape(note)}</li>" for note in shown.notes)
    return (
        f"<h2>{escape(shown.name)}: {escape(shown.title)}</h2>\n<table>\n<tr>{head}</tr>\n{rows}\n</table>\n<ul>{notes}</ul>\n"
    )


def _orders(name: str, table: Table, records: dict[str, Record]) -> Iterator[str]:
    """Of every two rows, whether ours and the paper's order agree: named where they do not."""
    for column in (*COLUMNS[table.evaluation], "fps"):
        both = [
            (row, theirs, ours)
            for row in printed(name)
            if (theirs := row.numbers.get(column)) is not None
            and (ours := value_of(records.get(row.name, {}), table.evaluation, column)) is not None
        ]
        pairs = [(one, other) for one, other in combinations(both, 2) if one[1] != other[1]]
        turned = [(one, other) for one, other in pairs if (one[1] - other[1]) * (one[2] - other[2]) <= 0]
        if pairs:
            named = [f"{_title(one[0])} and {_title(other[0])}" for one, other in turned]
            more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
            agree = f"{len(pairs) - len(turned)} of {len(pairs)} pairs of rows are in the paper's order"
            yield f"By {column}, {agree}{'; not ' + '; '.join(named[:NAMED] + more) if named else ''}."


def _title(row: Printed) -> str:
    """With the size, where several rows have one title."""
    return f"{row.title} ({_number(row.numbers['mb'])} MB)" if "mb" in row.numbers else row.title
