"""What makes a model fast on a GPU leaves its answers alone; here on the CPU, in test_gpu.py on a GPU."""

import copy
import weakref

import pytest
import torch
from torch import nn

from gdws.deploy.benchmark import bench
from gdws.deploy.graphed_model import CALLS, LAYOUTS, GraphedModel, RepeatedLayer, graph_model


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recorded_model_answers_as_the_model(model, layout):
    images = torch.rand(4, 3, 9, 9)
    expected = copy.deepcopy(model).eval()(images)
    ready = GraphedModel(model, layout)
    answers = [ready(images) for _ in range(4)]
    assert all(torch.allclose(answer, expected, atol=1e-6) for answer in answers)
    ready(torch.zeros_like(images))
    assert torch.allclose(answers[-1], expected, atol=1e-6)  # not the memory of the next call


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_faster_layout_is_taken_of_a_copy(model, precision):
    images = torch.rand(2, 3, 9, 9)
    expected = copy.deepcopy(model).eval()(images)
    ready = graph_model(model, images, precision)
    assert model.training
    assert ready.layout in LAYOUTS
    answer = ready(images.to(getattr(torch, precision)))
    assert answer.dtype == getattr(torch, precision)
    assert torch.allclose(answer.float(), expected, atol=1e-5 if precision == "float32" else 1e-2)


def test_a_copy_runs_its_own_weights_and_nothing_is_kept_alive(model):
    images = torch.rand(2, 3, 9, 9)
    ready = GraphedModel(model)
    answer, copied = ready(images), copy.deepcopy(ready)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert not copied(images).any()
    assert torch.equal(ready(images), answer)
    alive = weakref.ref(ready)
    del ready
    assert alive() is None


def test_what_was_recorded_in_inference_mode_runs_outside_of_it(model):
    ready, images = GraphedModel(model), torch.rand(2, 3, 9, 9)
    with torch.inference_mode():
        answers = [ready(images) for _ in range(4)]
    assert not answers[-1].is_inference()
    assert torch.equal(ready(images), answers[-1])


def test_a_repeated_layer_takes_its_time_as_often():
    """Two inputs, as of a layer that is used twice; weights of its own each time."""
    calls, weights = [], set()

    class Counted(nn.Conv2d):
        def forward(self, x):
            calls.append(x.shape)
            weights.add(self.weight.data_ptr())
            return super().forward(x)

    inputs = [torch.rand(1, 2, 5, 5), torch.rand(1, 2, 7, 7)]
    bench({"layer": RepeatedLayer(Counted(2, 2, 3), inputs)}, torch.rand(1, 3, 9, 9), warmup=0, repeats=1)
    assert calls == [x.shape for _ in range(2 * CALLS) for x in inputs]
    assert len(weights) == CALLS
