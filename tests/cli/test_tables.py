"""Tables of the command line in numbers that a reader can use."""

import dataclasses

import pytest
import torch
from helpers import Net

import gdws
from gdws.cli import tables
from gdws.cli.terminal import console


@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_losses_are_shares_of_all_that_is_lost(scale):
    """Bug: 3.1e-08, which tells a reader nothing."""
    torch.manual_seed(0)
    made = gdws.plan(Net().eval(), [torch.rand(8, 3, 12, 12)], gdws.Macs(0.4), gdws.Calibrated(attack=None))
    made = dataclasses.replace(made, layers=tuple(dataclasses.replace(p, loss=scale * p.loss) for p in made.layers))
    table = tables.plan(made)
    (column,) = (column for column in table.columns if column.header == "loss %")
    replaced = [layer for layer in made.layers if layer.structure != "dense"]
    shown = {layer.name: float(cell) for layer, cell in zip(made.layers, column.cells, strict=True) if cell}
    assert shown == {layer.name: pytest.approx(100 * layer.loss / made.loss, abs=0.051) for layer in replaced}
    assert sum(shown.values()) == pytest.approx(100, abs=0.2)
    with console.capture() as text:
        console.print(table)
    assert "e-" not in text.get()
