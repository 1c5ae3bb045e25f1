"""Rows as data: sizes against the networks of the zoo, fractions against those that were worked out by hand, and the tables."""

from pathlib import Path

import pytest
import torch
from torch import nn

import gdws
from gdws.models import zoo
from gdws.reproduce.pages import write_pages
from gdws.reproduce.paper import chosen_tables, paper
from gdws.reproduce.place import Place
from gdws.reproduce.rows import lines
from gdws.reproduce.scales import SCALES, scale
from gdws.reproduce.steps.compressed import fraction_at, fraction_without, size_as_printed
from gdws.reproduce.tables import differs, grid, leaderboard, markdown, printed

ROWS = {
    "table1": 9,
    "table2": 6,
    "table3": 10,
    "table4": 16,
    "table5": 6,
    "table6": 4,
    "table7": 6,
    "table8": 3,
    "table9": 12,
    "table10": 9,
    "table11": 26,
}
"""How many rows each table of the paper has, counted there."""


@pytest.mark.parametrize(("table", "count"), ROWS.items())
def test_every_row_of_a_table_is_there(table, count):
    assert len(list(printed(table))) == count


@pytest.mark.parametrize("row", paper().base, ids=lambda row: row.name)
def test_sizes_of_bases_are_those_that_the_paper_prints(row):
    if "mb" in row.paper:
        model = zoo.build(row.network)
        assert round(sum(value.numel() for value in model.parameters()) * 4 / 2**20, 1) == row.paper["mb"]


@pytest.mark.parametrize(
    ("network", "mb", "fraction"),
    [
        *[("preactresnet18", 33.5, 0.782), ("preactresnet18", 29.1, 0.677)],
        *[("vgg16", 33.3, 0.592), ("vgg16", 28.7, 0.510), ("vgg16", 19.1, 0.339), ("vgg16", 16.3, 0.289)],
        *[("wrn28_4", 19.9, 0.891), ("wrn28_4", 18.9, 0.846), ("preactresnet50", 81.9, 0.819), ("preactresnet50", 75.9, 0.680)],
        *[("vgg16_hydra", 56.5, 0.966), ("vgg16_hydra", 50.6, 0.861), ("vgg16_hydra", 44.2, 0.747)],
        *[("wrn28_4", 22.3, 0.999), ("wrn28_4", 20.5, 0.918)],
    ],
)
def test_fractions_of_the_weights_that_may_be_replaced(network, mb, fraction):
    assert fraction_at(network, mb) == pytest.approx(fraction, abs=1e-3)


def test_a_share_of_all_weights_is_removed_from_those_that_may_go():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 10, 3, padding=1), nn.Flatten(), nn.Linear(10 * 64, 10))
    whole = 16 + 370 + 6410
    left = fraction_without(model, torch.rand(1, 3, 8, 8), 0.02)
    assert whole - 360 * (1 - left) == pytest.approx(0.98 * whole)


def test_tables_come_in_the_papers_order():
    assert chosen_tables(["figure1", "table10", "table2"]) == ("table2", "table10", "figure1")
    assert "leaderboard" not in chosen_tables([])
    assert chosen_tables(["leaderboard"]) == ("leaderboard",)


@pytest.mark.parametrize("name", SCALES)
def test_every_base_has_a_recipe_at_every_scale(name):
    for row in paper().base:
        for recipe in filter(None, (row.recipe, row.ours)):
            made = scale(name).recipe(row, recipe, "cpu", 3)
            assert made.seed == 3
            if name == "fast":
                assert made.epochs == row.epochs[recipe] <= 64
    assert scale("paper").recipe(paper().base[1], "paper-cifar10", "cpu", 0).epochs == 200


def record(name, natural, robust, *, count=1000, compared="", paired=(), fps=100.0, beside="", **more):
    def column(percent):
        return {"percent": percent, "interval": (percent - 2.5, percent + 2.5), "right": ""}

    change = {"points": 0.0, "p": 1.0, "interval": tuple(paired)} if paired else None
    return {
        "name": name,
        "tables": ["table7"],
        "paper": {},
        "beside": beside,
        "compared with": compared,
        "judged": {"pgd": {"columns": {"natural": column(natural), "robust": column(robust)}, "images": count}},
        "paired": {} if change is None else {"pgd": {"natural": change, "robust": change}},
        "speed": {"timings": {"eager": {"fps": fps}}},
        **more,
    }


def test_a_row_that_differs_by_more_than_noise_is_named():
    table, rows = paper().table["table7"], {row.name: row for row in printed("table7")}
    base, row = rows["cifar10-vgg16"], rows["cifar10-vgg16.paper-size-28.7"]
    assert differs(table, base, record(base.name, 78.0, 48.0)) == ""
    assert "natural 77.49 in the paper, 79.50 to 84.50 here" in differs(table, base, record(base.name, 82.0, 48.0))
    # The paper's changes are -0.32 and +0.64.
    alike = record(row.name, 81.0, 48.0, compared=base.name, paired=(-0.5, 0.7))
    assert differs(table, row, alike) == ""
    worse = record(row.name, 81.0, 48.0, compared=base.name, paired=(-3.0, -1.0))
    assert differs(table, row, worse).startswith("changes by natural -0.32 in the paper, -3.00 to -1.00 here; robust +0.64")


def test_a_table_shows_both_numbers_and_the_order_of_its_rows():
    rows = {row.name: row for row in printed("table7")}
    first, second = "cifar10-vgg16", "cifar10-vgg16.paper-size-28.7"
    numbers = {"paper": {"natural": 1.0}, "network": {"mb": 56.18}}
    own = record(second, 76.0, 49.0, compared=first, paired=(-0.5, 0.7), fps=50.0, paper={"natural": 1.0})
    beside = record("x", 70.0, 40.0, beside=second, method="auto", match="macs", tuned=True)
    shown = grid("table7", {first: record(first, 77.0, 48.0, **numbers), second: own, "x": beside}, {first: "Unseen."})
    assert len(shown.rows) == len(rows) + 1
    assert shown.rows[0][:5] == ("VGG-16", "77.49", "77.00", "48.92", "48.00")
    assert shown.rows[1][1:3] == ("77.17", "76.00 (+0.00)")
    assert shown.rows[2][0] == "· auto at the same MACs, tuned"
    assert shown.rows[3][2] == "–"
    assert "By natural, 1 of 1 pairs of rows are in the paper's order." in shown.notes
    assert (
        "By fps, 0 of 1 pairs of rows are in the paper's order; not VGG-16 (56.2 MB) and VGG-16 + GDWS (28.7 MB)."
        in shown.notes
    )
    lines = markdown(shown).splitlines()
    assert len({line.count("|") for line in lines[: len(shown.rows) + 2]}) == 1


def test_the_leaderboard_has_one_recipe_for_each_network_and_shows_what_is_made():
    """Bug: it was made for two recipes, and showed that one which was not to be had as a file."""
    place = Place(Path("none"), scale("smoke"), {"cifar10": "demo"})
    made, missing = lines(place, ["table9", "leaderboard"])
    assert missing == []
    board = [line for line in made if "leaderboard" in line.tables]
    assert [line.name for line in board if line.method == "base"] == ["cifar10-preactresnet18-ours", "cifar10-vgg16"]
    assert len(board) == 2 * (1 + 3 * 2)
    shown = leaderboard({line.name: record(line.name, 80.0, 45.0, tables=["leaderboard"], tuned=line.tuned) for line in board})
    assert len(shown.rows) == len(leaderboard({}).rows) + len(board)
    assert all("autoattack" not in line.judged for line in made if line not in board)
    alone, _ = lines(place, ["leaderboard"])
    assert [line.name for line in alone] == [line.name for line in board]


def test_a_network_in_which_nothing_was_replaced_is_not_tuned(tmp_path):
    """Bug: the dense network can be what is as fast as a row of the paper, and training its factors failed."""
    place = Place(tmp_path, scale("smoke"), {"cifar10": "demo"})
    made, _ = lines(place, ["table7"])
    step = next(line.network for line in made if line.match == "speed" and line.tuned)
    place.folder(step.before).mkdir(parents=True)
    place.keep(step.before, {"layers": {"conv": {"structure": "dense"}}})
    assert step.run(place) == {
        "out of reach": "there is nothing to tune: the dense network is as fast as the one that this stands beside"
    }


def test_the_leaderboard_has_the_public_entries():
    text = markdown(leaderboard({}))
    assert "ResNet-18: TwinRep, trained | 90 % | 78.41 | 44.30" in text
    assert "VGG-16: ADMM, another group's run | 75 % | 70.51 | 37.74" in text


def test_the_size_of_a_sparse_network_as_the_paper_counts_it():
    """Against singular value decompositions, whose vectors are zero where rows or columns of a block are."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 32, 3, padding=1), nn.Flatten(), nn.Linear(32 * 64, 10)]
    model = nn.Sequential(*layers).eval()
    kept = torch.rand(32, 4, 3, 3, generator=generator) < 0.1
    model[1].weight.data *= kept
    model[1].weight.data[:, 0, 0] = 0  # three taps that no filter uses
    images = torch.rand(4, 3, 8, 8, generator=generator)
    made = gdws.plan(model, [images], gdws.Params(0.4), gdws.Paper(attack=None))
    (layer,) = (layer for layer in made.layers if layer.structure == "gdws")
    factors = 0
    for channel, rank in enumerate(layer.g):
        u, _, v = torch.linalg.svd(model[1].weight.detach()[:, channel].flatten(1).double(), full_matrices=False)
        factors += int((u[:, :rank].abs() > 1e-9).sum() + (v[:rank].abs() > 1e-9).sum())
    grown = factors - int(model[1].weight.count_nonzero())
    assert size_as_printed(model, made) * 2**20 / 4 == grown


def test_the_committed_page_is_what_the_records_give(tmp_path):
    folder = Path(__file__).parents[2] / "docs" / "results" / "paper"
    for path in (path for path in folder.rglob("*") if path.is_file()):  # without their modes: a checkout may be read-only
        copy = tmp_path / "paper" / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    write_pages(tmp_path / "paper", tmp_path / "paper" / "rows", chosen_tables(["all", "leaderboard"]))
    for page in folder.glob("*.*"):
        assert (tmp_path / "paper" / page.name).read_text() == page.read_text(), "expected python benchmarks/paper_page.py"
