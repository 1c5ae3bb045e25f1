"""Every warning has a model that was built to trigger it, and a sound one that does not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gdws import data, models
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.evaluation.compare import compare
from gdws.evaluation.red_flags import ADVICE, _notable, red_flags


class Changed(nn.Module):
    """A network with something done to its images and its logits."""

    def __init__(self, network, before=lambda x: x, after=lambda logits: logits):
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x):
        return self.after(self.network(self.before(x)))


def quantised(x):
    """32 grey levels: flat almost everywhere."""
    return (x * 31).round() / 31


def kinds(networks, batches, *attacks):
    found = compare(networks, batches, attacks)
    made = red_flags(found, networks, batches, attacks)
    for doubt in made:
        assert str(doubt).startswith(f"{doubt.network}: ")
        assert ADVICE[doubt.kind] in str(doubt)
    return {(doubt.network, doubt.kind) for doubt in made}


def test_a_sound_evaluation_raises_no_doubt(small):
    model, *batch = small
    assert kinds({"base": model, "same": copy.deepcopy(model)}, [batch], PGD(steps=30)) == set()
    assert kinds({"embedded": models.embedded()}, data.load("demo", "test").take(10, 10), PGD(steps=10)) == set()
    assert kinds({"half": copy.deepcopy(model).half()}, [batch]) == set()


@pytest.mark.filterwarnings("ignore:.* answers the same images differently")
@pytest.mark.parametrize(
    ("changes", "attack", "expected"),
    [
        ({"after": torch.sigmoid}, None, "probabilities"),
        ({"after": lambda logits: 1e4 * logits}, PGD(steps=5), "gradients"),
        ({"after": lambda logits: 30 * torch.tanh(1e3 * logits)}, PGD(steps=5), "gradients"),
        ({"before": quantised}, PGD(steps=5), "gradients"),
        ({"before": lambda x: F.dropout(x, 0.1, training=True)}, None, "randomness"),
        ({"after": lambda logits: logits + 0.05 * torch.randn_like(logits)}, None, "randomness"),
        ({"after": lambda logits: logits.roll(1, 1)}, None, "chance"),
        ({}, PGD(steps=1), "effort"),
        ({"before": quantised}, PGD(eps=16 / 255, steps=5), "black box"),
    ],
    ids=["sigmoid", "scaled", "tanh", "quantiser", "dropout", "noise", "shifted", "one step", "search"],
)
def test_a_model_built_to_raise_a_doubt_does(small, changes, attack, expected):
    model, *batch = small
    attacks = [attack] if attack else []
    assert ("model", expected) in kinds({"model": Changed(model, **changes)}, [batch], *attacks)


def test_a_model_that_decides_all_images_alike(small):
    """Where one class is common enough, that is better than guessing."""
    model, images, labels = small
    common = torch.zeros_like(labels)
    common[: len(common) // 4] = 1
    stuck = Changed(model, after=lambda logits: logits + 1e3 * F.one_hot(torch.tensor(0), logits.shape[1]))
    assert kinds({"stuck": stuck}, [(images, common)]) == {("stuck", "chance")}
    assert kinds({"stuck": stuck}, [(images, torch.zeros_like(labels))]) == set()


def test_a_masked_model_is_beaten_by_examples_of_another(small):
    model, *batch = small
    found = kinds({"base": model, "masked": Changed(model, before=quantised)}, [batch], PGD())
    assert ("masked", "transfer") in found
    assert not any(network == "base" for network, _ in found)


def test_a_softmax_head_is_refused_outright(small):
    model, *batch = small
    with pytest.raises(GdwsError, match="probabilities"):
        kinds({"model": Changed(model, after=lambda logits: logits.softmax(1))}, [batch])


def test_a_model_cut_off_from_its_images_is_refused(small):
    model, *batch = small
    for cut in ({"before": torch.Tensor.detach}, {"after": torch.Tensor.detach}):
        with pytest.raises(GdwsError, match="detaches"):
            kinds({"model": Changed(model, **cut)}, [batch], PGD())


def test_one_lucky_image_is_no_doubt():
    """A gain must be beyond what another random start breaks now and then."""
    assert not _notable(torch.arange(32) < 1)
    assert not _notable(torch.arange(32) < 3)
    assert _notable(torch.arange(32) < 4) == "4 of 32 images"


def test_other_images_than_were_compared_are_told(small):
    """Bug: a traceback from within PyTorch."""
    model, images, labels = small
    found = compare({"base": model}, [(images, labels)], [])
    with pytest.raises(GdwsError, match="images"):
        red_flags(found, {"base": model}, [(images[:, :1], labels)], [])
