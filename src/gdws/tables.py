"""What the command line prints, as tables that fit eighty columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from gdws.demo import Row
from gdws.plans import Plan
from gdws.structures import STRUCTURES


def demo(rows: Sequence[Row], images: int) -> Table:
    """The demo's networks, the first of them the base."""
    table = _plain("CIFAR-10, method and fraction of MACs")
    table.caption = f"1,000 test images, PGD-20 on the first {images}; FPS of single images on one core, eager PyTorch"
    for heading in ("network", "natural", "PGD-20", "M MACs", "k par.", "MB", "FPS", "speed"):
        table.add_column(heading, justify="left" if heading == "network" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.natural:.1f}",
            f"{row.robust:.1f}",
            f"{row.macs / 1e6:.1f} ({row.macs / rows[0].macs:.2f})",
            f"{row.parameters / 1e3:.0f}",
            f"{row.size_mb:.2f}",
            f"{row.fps:.0f}",
            f"{row.fps_ratio:.2f}x",
        )
    return table


def plan(made: Plan) -> Table:
    """What becomes of each convolution."""
    table = _plain(f"{made.method}, {made.budget}")
    table.caption = "loss: predicted; next: what another structure would lose at this cost, in multiples of it"
    for heading in ("convolution", "becomes", "MACs", "loss", "next"):
        table.add_column(heading, no_wrap=True)
    for layer in made.layers:
        replaced = layer.structure != "dense"
        becomes = STRUCTURES[layer.structure].describe(layer) if replaced else f"dense: {layer.reason}"
        table.add_row(
            layer.name,
            becomes,
            f"{layer.macs / layer.dense_macs:.2f}" if replaced else "",
            f"{layer.loss:.1e}" if replaced else "",
            layer.reason.partition(",")[0] if replaced else "",
        )
    return table


def left(made: Plan) -> str:
    """The plan's cost in a sentence."""
    return f"{made.macs:.3f} of the MACs and {made.parameters:.3f} of the weights that may be replaced are left"


def _plain(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
