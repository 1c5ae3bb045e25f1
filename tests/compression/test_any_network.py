"""Networks of all kinds: each is compressed, says what it replaced and what it kept, is saved, loaded and exported; at full
size nothing changes."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gdws
from gdws.core.errors import GdwsError
from gdws.core.inputs import floats_in
from gdws.models import Normalized

METHOD = {"structures": ["gdws", "vertical"]}


def conv(inputs, outputs, **settings):
    return nn.Conv2d(inputs, outputs, 3, **{"padding": 1, **settings})


class UNet(nn.Module):
    """Down by a stride, up by a transposed convolution, two outputs."""

    def __init__(self, inputs=3, classes=5):
        super().__init__()
        self.first, self.down, self.middle = conv(inputs, 16), conv(16, 32, stride=2), conv(32, 32, padding=2, dilation=2)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, 2), conv(32, classes)

    def forward(self, x):
        wide = F.relu(self.first(x))
        deep = F.relu(self.middle(F.relu(self.down(wide))))
        return {"out": self.last(torch.cat([wide, F.relu(self.up(deep))], 1)), "features": deep.mean((2, 3))}


class Dilated(nn.Module):
    """Segmentation at half the size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(conv(3, 16, stride=2), nn.ReLU(), conv(16, 24, padding=2, dilation=2), nn.ReLU()),
            *(conv(24, 24, padding=4, dilation=4), nn.ReLU(), nn.Conv2d(24, 6, 1)),
        )

    def forward(self, x):
        return F.interpolate(self.layers(x), scale_factor=2, mode="bilinear")


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = conv(2, 16), conv(16, 16), conv(16, 16), conv(16, 1)

    def forward(self, x, sigma):
        level = sigma.view(-1, 1, 1, 1).expand_as(x)
        return x - self.last(F.relu(self.third(F.relu(self.second(F.relu(self.first(torch.cat([x, level], 1))))))))


class Upscaler(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.first, self.body = conv(channels, 16), nn.ModuleList([conv(16, 16) for _ in range(2)])
        self.last, self.shuffle = conv(16, 4 * channels), nn.PixelShuffle(2)

    def forward(self, x):
        hidden = self.first(x)
        for layer in self.body:
            hidden = hidden + F.leaky_relu(layer(hidden), 0.2)
        return self.shuffle(self.last(hidden))


class Squeezed(nn.Module):
    """Grouped convolutions with squeeze and excitation, and one convolution that is used twice; a classifier."""

    def __init__(self):
        super().__init__()
        self.first, self.grouped, self.again = conv(3, 16), conv(16, 32, groups=4), conv(32, 32)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.grouped(F.relu(self.first(x))))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head(F.relu(self.again(F.relu(self.again(x)))).mean((2, 3)))


class OneDimension(nn.Module):
    """A convolution in one dimension and one called as a function beside ordinary ones."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.along = conv(1, 8), conv(8, 8), nn.Conv1d(8, 8, 3, padding=1)
        self.kernel = nn.Parameter(torch.rand(8, 8, 3, 3) / 9)

    def forward(self, x):
        x = F.conv2d(F.relu(self.second(F.relu(self.first(x)))), self.kernel, padding=1)
        return self.along(x.mean(3))


class Siamese(nn.Module):
    """How far two pictures are apart: one number for each pair, of a trunk that runs once on both."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(conv(3, 16), nn.ReLU(), conv(16, 24, stride=2), nn.ReLU(), conv(24, 24))

    def forward(self, left, right):
        seen, count = self.trunk(torch.cat([left, right])).mean((2, 3)), left.shape[0]
        return (seen[:count] - seen[count:]).square().sum(1)


class Frames(nn.Module):
    """Scores of a clip (B, frames, 3, H, W): a trunk sees the frames of all clips as one batch, a head one map of each clip."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Sequential(conv(3, 16), nn.ReLU(), conv(16, 16), nn.ReLU()), conv(16, 16)

    def forward(self, clips):
        seen = self.trunk(clips.flatten(0, 1)).unflatten(0, clips.shape[:2]).mean(1)
        return {"maps": self.head(seen)}


def test_multiply_adds_are_those_of_all_maps_of_a_sample():
    """Bug: of a clip of eight frames the trunk's were counted for one, so that a budget of MACs was another one."""
    model, clips = Frames().eval(), torch.rand(4, 8, 3, 16, 16)
    made = gdws.plan(model, [clips], gdws.Macs(0.5), gdws.Calibrated(attack=None))
    counted = {layer.name: layer.dense_macs for layer in made.layers}
    assert counted["trunk.2"] == 8 * counted["head"] == 8 * 16 * 16 * 9 * 16 * 16
    assert sum(counted.values()) == gdws.network_cost(model, clips[:1]).macs
    small = gdws.network_cost(gdws.compress(model, [clips], gdws.Macs(0.5), gdws.Calibrated(attack=None)), clips[:1]).macs
    stem = counted["trunk.0"]
    assert 0.4 < (small - stem) / (sum(counted.values()) - stem) <= 0.5


class OneByOne(nn.Module):
    """Sends the samples of a batch through its first layers one after another."""

    def __init__(self):
        super().__init__()
        self.stem, self.alone, self.together = conv(3, 16), conv(16, 16), conv(16, 16)

    def forward(self, x):
        return self.together(torch.stack([self.alone(self.stem(each).relu()) for each in x]).relu())


def test_convolutions_without_a_batch_stay_dense():
    """Bug: "the model cannot run on images of shape (3, 16, 16): not enough values to unpack"."""
    model, images = OneByOne().eval(), torch.rand(8, 3, 16, 16)
    fast = gdws.compress(model, [images], gdws.Macs(0.5), gdws.Calibrated(attack=None))
    stem, alone, together = gdws.plan_of(fast).layers
    assert stem.reason == alone.reason == "called with a map (C, H, W) without a batch"
    assert together.structure != "dense"
    assert fast(images).shape == model(images).shape


def upscaler_of(channels=3, wrap=lambda network: network):
    return wrap(Upscaler(channels))


def weight_normed(network):
    for layer in network.body:
        nn.utils.parametrizations.weight_norm(layer)
    return network


def batches(*shape, count=3):
    return [torch.rand(4, *shape) for _ in range(count)]


NETWORKS = {
    "U-Net with a transposed convolution and two outputs": (UNet, lambda: batches(3, 32, 32)),
    "dilated segmentation": (Dilated, lambda: batches(3, 32, 32)),
    "two inputs by name": (Denoiser, lambda: [{"x": torch.rand(4, 1, 20, 20), "sigma": torch.rand(4)} for _ in range(3)]),
    "two inputs by position": (Denoiser, lambda: [gdws.Arguments(torch.rand(4, 1, 20, 20), torch.rand(4)) for _ in range(3)]),
    "one number for two pictures": (Siamese, lambda: [{"left": x, "right": x.flip(0)} for x in batches(3, 16, 16)]),
    "frames of clips": (Frames, lambda: batches(5, 3, 16, 16)),
    "upscaler": (upscaler_of, lambda: batches(3, 16, 16)),
    "targets beside the inputs": (upscaler_of, lambda: [(x, torch.rand(4, 3, 32, 32)) for x in batches(3, 16, 16)]),
    "one channel": (lambda: upscaler_of(1), lambda: batches(1, 16, 16)),
    "four channels": (lambda: upscaler_of(4), lambda: batches(4, 16, 16)),
    "values of any range": (upscaler_of, lambda: [200 * x - 50 for x in batches(3, 16, 16)]),
    "three sizes": (upscaler_of, lambda: [torch.rand(2, 3, 16, 18), torch.rand(2, 3, 20, 16), torch.rand(2, 3, 33, 34)]),
    "weight-normed": (lambda: upscaler_of(wrap=weight_normed), lambda: batches(3, 16, 16)),
    "in DataParallel": (lambda: upscaler_of(wrap=nn.DataParallel), lambda: batches(3, 16, 16)),
    "normalized": (
        lambda: upscaler_of(wrap=lambda network: Normalized(network, (0.5,) * 3, (0.2,) * 3)),
        lambda: batches(3, 16, 16),
    ),
    "half precision": (lambda: upscaler_of().half(), lambda: [x.half() for x in batches(3, 16, 16)]),
    "groups, squeeze and excitation, used twice": (Squeezed, lambda: batches(3, 16, 16)),
    "one dimension and a function": (OneDimension, lambda: batches(1, 12, 12)),
}


def answers(model, batch):
    batch = batch[0] if isinstance(batch, tuple) else batch
    with torch.no_grad():
        if isinstance(batch, gdws.Arguments):
            return floats_in(batch.call(model))
        return floats_in(model(**batch) if isinstance(batch, dict) else model(batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_full_size_changes_nothing_and_half_is_saved_loaded_and_exported(name, tmp_path):
    make, give = NETWORKS[name]
    torch.manual_seed(0)
    model, data = make().eval(), give()
    method = gdws.Calibrated(**METHOD, attack=None)
    wanted = answers(model, data[0])
    whole = gdws.compress(model, data, gdws.Macs(1.0), method)
    half = gdws.compress(model, data, gdws.Macs(0.6), method)
    plan = gdws.plan_of(half)
    tolerance = 1e-4 if wanted[0].dtype == torch.float32 else 1e-2
    for value, expected in zip(answers(whole, data[0]), wanted, strict=True):
        torch.testing.assert_close(value, expected, atol=tolerance * float(expected.abs().max()), rtol=0)
    assert 0.2 < plan.macs <= 0.6
    assert any(layer.structure != "dense" for layer in plan.layers)
    assert all(layer.reason for layer in plan.layers if layer.structure == "dense")
    gdws.save(half, tmp_path / "half")
    loaded = gdws.load(tmp_path / "half", model)
    for value, expected in zip(answers(loaded, data[0]), answers(half, data[0]), strict=True):
        assert torch.equal(value, expected)
    assert gdws.plan_of(loaded) == plan
    alone = gdws.load(tmp_path / "half")  # the exported file, without the code
    first = data[0][0] if isinstance(data[0], tuple) else data[0]
    first = {key: value.float() for key, value in first.items()} if isinstance(first, dict) else first
    floats = first.float() if isinstance(first, torch.Tensor) else first
    for value, expected in zip(answers(alone, floats), answers(half, data[0]), strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(value, expected.float(), atol=10 * tolerance * scale, rtol=0)


class Mixed(nn.Module):
    """Convolutions in bfloat16, weights in float32."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(conv(3, 16), nn.ReLU(), conv(16, 16), nn.ReLU(), conv(16, 3))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.layers(x).float()


def test_convolutions_may_run_in_a_type_of_their_own():
    torch.manual_seed(0)
    model, data = Mixed().eval(), batches(3, 16, 16)
    whole = gdws.compress(model, data, gdws.Macs(1.0), gdws.Calibrated(**METHOD))
    half = gdws.compress(model, data, gdws.Macs(0.6), gdws.Calibrated(**METHOD))
    assert torch.equal(whole(data[0]), model(data[0]))
    assert 0 < gdws.plan_of(half).fidelity.distance < 0.5


def test_what_stays_is_named_with_a_reason():
    unet, data = UNet().eval(), batches(3, 32, 32)
    plan = gdws.plan(unet, data, gdws.Macs(0.7), gdws.Calibrated(**METHOD))
    assert plan.objective == "values"
    assert plan.others == {"up": "a transposed convolution"}
    assert {layer.name: layer.reason for layer in plan.layers if layer.structure == "dense"}["first"] == "first layer"
    plan = gdws.plan(OneDimension().eval(), batches(1, 12, 12), gdws.Macs(1.0), gdws.Calibrated(**METHOD))
    assert plan.others["along"] == "a convolution in one dimension"
    assert plan.others["convolutions called as functions"].startswith("1 calls")


@pytest.mark.parametrize(
    ("output", "targets", "objective"),
    [
        (torch.rand(4, 10), None, "classes"),
        (torch.rand(4, 10), torch.arange(4), "classes"),
        (torch.rand(4, 10), torch.rand(4, 10), "values"),
        (torch.rand(4, 1), None, "values"),
        (torch.rand(4, 5, 8, 8), torch.zeros(4, 8, 8, dtype=torch.int64), "pixels"),
        (torch.rand(4, 5, 8, 8), None, "values"),
        (torch.rand(4, 5, 8, 8), torch.rand(4, 5, 8, 8), "values"),
        ({"out": torch.rand(4, 5, 8, 8)}, None, "values"),
        ((torch.rand(4, 10), torch.rand(4, 3)), None, "values"),
    ],
)
def test_objectives_are_chosen_by_shapes(output, targets, objective):
    assert gdws.objectives.choose_objective("auto", output, targets).name == objective


def test_pixels_are_kept_where_labels_are_maps():
    torch.manual_seed(1)
    model = Dilated().eval()
    data = [(x, torch.zeros(4, 32, 32, dtype=torch.int64)) for x in batches(3, 32, 32, count=4)]
    fast = gdws.compress(model, data, gdws.Macs(0.7), gdws.Calibrated(**METHOD))
    fidelity = gdws.plan_of(fast).fidelity
    assert gdws.plan_of(fast).objective == fidelity.objective == "pixels"
    pixels = torch.cat([x for x, _ in data])[-fidelity.samples :]
    with torch.no_grad():
        differing = (model(pixels).argmax(1) != fast(pixels).argmax(1)).double().mean()
    assert fidelity.distance == pytest.approx(float(differing), abs=1e-6)
    assert fidelity.low <= fidelity.distance <= fidelity.high


def test_a_measure_of_the_users_own_bounds_the_loss():
    torch.manual_seed(2)
    model, data = upscaler_of().eval(), batches(3, 16, 16, count=4)
    held, seen = torch.rand(4, 3, 16, 16), []
    with torch.no_grad():
        wanted = model(held)

    def closeness(network):
        seen.append(network)
        with torch.no_grad():
            return -float((network(held) - wanted).square().mean().sqrt() / wanted.std())

    plan = gdws.plan(model, data, gdws.Drop(0.05), gdws.Calibrated(**METHOD), check=closeness)
    assert plan.fidelity.name == "closeness"
    assert plan.fidelity.before == 0
    assert 0 < plan.fidelity.most_lost <= 0.05
    assert plan.macs < 1
    assert gdws.Plan.from_json(plan.to_json()) == plan
    report = gdws.report(model, gdws.compress(model, data, gdws.Macs(0.6), gdws.Calibrated(**METHOD)), held, check=closeness)
    assert report.fidelity.after < 0
    assert "closeness" in str(report)


def test_an_objective_of_ones_own():
    torch.manual_seed(3)
    model, data = upscaler_of().eval(), batches(3, 16, 16)

    def middle(output, generator):
        cotangent = torch.zeros_like(output)
        cotangent[:, :, 12:20, 12:20] = torch.randn(len(output), 3, 8, 8, generator=generator)
        return cotangent

    def largest(output, other):
        return (output - other).abs().flatten(1).amax(1)

    own = gdws.objectives.Own(middle, largest)
    fast = gdws.compress(model, data, gdws.Macs(0.6), gdws.Calibrated(**METHOD, objective=own))
    assert gdws.plan_of(fast).objective == "own"
    held = torch.cat(data)[-gdws.plan_of(fast).fidelity.samples :]
    with torch.no_grad():
        expected = float(largest(model(held), fast(held)).mean())
    assert gdws.plan_of(fast).fidelity.distance == pytest.approx(expected, rel=1e-5)


class Odd(nn.Module):
    """A network with something wrong about its output."""

    def __init__(self, odd):
        super().__init__()
        self.first, self.second, self.odd, self.calls = conv(3, 8), conv(8, 8), odd, itertools.count()

    def forward(self, x):
        return self.odd(self.second(F.relu(self.first(x))), self)


@pytest.mark.parametrize(
    ("odd", "objective", "words"),
    [
        (lambda y, _: y.detach(), "auto", "detaches its outputs from the images: expected gradients"),
        (lambda y, _: y / 0, "auto", "NaN or infinite values: expected finite"),
        (lambda y, _: y[: 1 + len(y) // 2], "auto", r"returned \(5, 8, 16, 16\) for 8 samples: expected a row for each"),
        (lambda y, self: y[..., : 8 + next(self.calls) % 2], "auto", "answers the same images differently"),
        (lambda y, _: y.argmax(1), "auto", "expected at least one floating-point tensor"),
        (lambda y, _: y, "classes", r"returned \(8, 8, 16, 16\) for 8 images: expected logits"),
        (lambda y, _: y.mean((2, 3)), "pixels", r"expected logits \(B, classes, H, W\)"),
        (lambda y, _: y, "edges", "the objective is 'edges': expected auto, classes, pixels, values"),
        (lambda y, _: y, gdws.objectives.Own(lambda y, g: y[:1], lambda a, b: a), "cotangents have the shapes"),
    ],
)
def test_wrong_things_get_one_sentence(odd, objective, words):
    with pytest.raises(GdwsError, match=words):
        gdws.calibrate(Odd(odd).eval(), batches(3, 16, 16), gdws.Calibrated(**METHOD, objective=objective))


def test_integers_alone_are_refused_for_what_they_are():
    model = nn.Sequential(nn.Embedding(20, 8), conv(12, 8), conv(8, 8)).eval()
    with pytest.raises(GdwsError, match=r"called with torch.int64 alone, which have no gradients: expected floats"):
        gdws.compress(model, [torch.randint(20, (4, 12, 12))], gdws.Macs(0.5))


def test_an_attack_on_what_is_no_classifier_is_refused():
    method = gdws.Calibrated(**METHOD, attack=gdws.attacks.PGD(steps=1))
    with pytest.raises(GdwsError, match=r"the objective 'values' got the attack .*expected attack=None"):
        gdws.calibrate(upscaler_of().eval(), batches(3, 16, 16), method)


def test_large_pictures_are_cut_into_tiles():
    statistics = gdws.calibrate(upscaler_of().eval(), [torch.rand(1, 3, 300, 200)], gdws.Calibrated(**METHOD))
    assert statistics.images.shape == (4 * 3, 3, 64, 64)
