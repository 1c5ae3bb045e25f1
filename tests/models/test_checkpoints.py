"""Checkpoints in the forms of public training code, written as real files, give the logits of the network that made them."""

import argparse
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gdws import models
from gdws.core.errors import GdwsError
from gdws.core.reading.weights import read_weights
from gdws.models import checkpoints, zoo


def network(name):
    torch.manual_seed(0)
    model = zoo.build(name)
    for key, value in model.state_dict().items():
        if key.endswith("running_mean"):
            value.normal_(0, 0.1)
    return model


def prefixed(state, prefix):
    return {prefix + key: value for key, value in state.items()}


def training_state(state):
    """What HYDRA, RobNet and many others write after an epoch."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "arch": "any",
        "best_prec1": torch.tensor(51.9),
        "optimizer": optimizer.state_dict(),
        "state_dict": state,
    }


def hydra_wide(state):
    """A DataParallel, with the block that HYDRA's wide ResNets carry along and never run."""
    idle = {key.replace("block1.", "sub_block1."): value + 1 for key, value in state.items() if key.startswith("block1.")}
    return training_state(prefixed({**state, **idle}, "module."))


def without_counters(state):
    return {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}


FORMS = {
    "plain": ("tiny", lambda state: state),
    "hydra vgg": ("vgg16_hydra", training_state),
    "hydra wrn": ("wrn28_4", hydra_wide),
    "admm": ("resnet18", lambda state: prefixed(state, "module.basic_model.")),
    "admm resumable": ("vgg16", lambda state: {"net": prefixed(state, "basic_model."), "acc": 77.4, "admm": {"ADMM_U": {}}}),
    "robnet": ("robnet_free", training_state),
    "resnet20": ("resnet20", lambda state: {"state_dict": prefixed(state, "module."), "best_prec1": 91.7}),
    "before 0.4.1": ("tiny", without_counters),
    "compiled": ("tiny", lambda state: {"model": prefixed(state, "_orig_mod.")}),
    "nested twice": ("tiny", lambda state: {"model": {"state_dict": state, "args": argparse.Namespace(lr=0.1)}}),
    "numpy": ("tiny", lambda state: {"model_state_dict": state, "best": np.float64(1.5), "n": np.int64(3), "f": np.float32(2)}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zipped", [True, False])
def test_public_forms_give_the_logits_of_the_network_that_made_them(form, zipped, tmp_path):
    name, write = FORMS[form]
    model = network(name)
    file = tmp_path / "checkpoint.pth.tar"
    torch.save(write(model.state_dict()), file, _use_new_zipfile_serialization=zipped)
    loaded = models.resolve(f"zoo:{name}", file)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_half_precision_becomes_single(tmp_path):
    model = network("preactresnet18_msd").half()
    torch.save(model.state_dict(), tmp_path / "MSD_V0.pt")
    loaded = models.resolve("zoo:preactresnet18_msd", tmp_path / "MSD_V0.pt")
    assert {value.dtype for value in loaded.state_dict().values()} == {torch.float32, torch.int64}
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model.float()(x))


def test_hydras_masks_are_refused_without_their_fraction_and_multiplied_with_it(tmp_path):
    model = network("tiny")
    state = dict(model.state_dict())
    for key, value in model.state_dict().items():
        if value.ndim > 1:
            state[key.removesuffix("weight") + "popup_scores"] = torch.randn_like(value)
    torch.save(training_state(prefixed(state, "module.")), tmp_path / "model_best.pth.tar")
    with pytest.raises(GdwsError, match=r"masked layers \(module.conv1.popup_scores\).*expected its dense file"):
        models.resolve("zoo:tiny", tmp_path / "model_best.pth.tar")
    dense = checkpoints.apply_popup_masks(read_weights(tmp_path / "model_best.pth.tar"), keep=0.1)
    torch.save(dense, tmp_path / "dense.pt")
    loaded = models.resolve("zoo:tiny", tmp_path / "dense.pt").state_dict()
    for key in ("layer1.0.conv1.weight", "linear.weight"):
        scores = state[key.removesuffix("weight") + "popup_scores"].abs()
        bound = scores.flatten().kthvalue(int(0.9 * scores.numel())).values
        assert torch.equal(loaded[key], state[key] * (scores > bound))
    whole = checkpoints.apply_popup_masks(state, keep=1.0)
    assert whole.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[key]) for key, value in whole.items())
    for keep in (0, 1.5):
        with pytest.raises(GdwsError, match=f"keep is {keep}: expected"):
            checkpoints.apply_popup_masks(state, keep)
    with pytest.raises(GdwsError, match=r"a\.popup_scores has shape \(2,\): expected a\.weight of the same shape"):
        checkpoints.apply_popup_masks({"a.popup_scores": torch.zeros(2)}, 0.5)


def test_names_of_the_file_are_kept_where_they_do_not_fit(tmp_path):
    torch.save({"net.conv.weight": torch.zeros(1), "net.conv.bias": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(GdwsError, match=r"has \['net.conv.weight', 'net.conv.bias'\] beside"):
        models.resolve("zoo:tiny", tmp_path / "w.pt")


def test_a_checkpoint_of_another_form_of_the_network_says_what_is_missing(tmp_path):
    torch.save(network("preactresnet18_msd").state_dict(), tmp_path / "w.pt")
    with pytest.raises(GdwsError, match=r"lacks \['bn.weight', 'bn.bias', 'bn.running_mean'\] and has nothing beside"):
        models.resolve("zoo:preactresnet18", tmp_path / "w.pt")


class Scheduler:
    pass


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_objects_are_refused_and_never_made(tmp_path, zipped):
    state = network("tiny").state_dict()
    for thing, words in [(Scheduler(), "test_checkpoints.Scheduler"), (Evil(tmp_path / "owned"), "system")]:
        file = tmp_path / "w.pt"
        torch.save({"state_dict": state, "scheduler": thing}, file, _use_new_zipfile_serialization=zipped)
        with pytest.raises(GdwsError, match=rf"w.pt holds \S*{words} besides tensors and is not read: expected a state dict"):
            models.resolve("zoo:tiny", file)
    # What may stand beside tensors holds values only: no way from there to code.
    torch.save({"args": argparse.Namespace(run=Evil(tmp_path / "owned"))}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(GdwsError, match="not read"):
        read_weights(file)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_files_are_refused(tmp_path, zipped):
    """Bug: what was said depended on the word of the old format in which a file was cut. Now only a cut class name is one."""
    whole, file = tmp_path / "whole.pt", tmp_path / "w.pt"
    torch.save(training_state(network("tiny").state_dict()), whole, _use_new_zipfile_serialization=zipped)
    content = whole.read_bytes()
    for left in (0, 5, *range(11, 1500, 29), -1000):
        file.write_bytes(content[:left])
        with pytest.raises(GdwsError, match=r"w.pt (cannot be read .*truncated|holds \S+ besides tensors)"):
            read_weights(file)


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ([torch.zeros(1)], "a list"),
        ({}, "a dict of nothing"),
        ({"epoch": 3, "optimizer": {"state": {}}}, "a dict of epoch, optimizer"),
        ({"state_dict": {"epoch": 3}}, "a dict of epoch"),
    ],
)
def test_files_without_a_state_dict_are_named(tmp_path, content, holds):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(GdwsError, match=f"w.pt holds {holds}: expected a state dict of tensors"):
        read_weights(tmp_path / "w.pt")


def test_a_file_without_tensors_is_refused(tmp_path):
    """Bug: it was looked through for a common prefix for ever."""
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(GdwsError, match="it lacks"):
        models.resolve("zoo:tiny", tmp_path / "empty.safetensors")
