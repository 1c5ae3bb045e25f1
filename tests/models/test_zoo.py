"""Every network of the zoo: the paper's size, public names, and the whole pipeline on 32 images."""

import pytest
import torch
from torch import nn

import gdws
from gdws.calibration.method import METHODS
from gdws.core.errors import GdwsError
from gdws.models import zoo
from gdws.models.zoo.normalize import CIFAR10, IMAGENET

# Parameters, and the size [MB] that the paper gives. The exact counts are public: pytorch-cifar's VGG-16, MobileNet and
# PreActResNet-18 (the last without the final BatchNorm), torchvision's ResNet-50 and MobileNetV2 (with ten classes), the
# 0.27 M of ResNet-20. Others are sums by hand of the layers that the architecture lists.
SIZES = {
    "mobilenetv1": (3_217_226, 12.3),
    "mobilenetv2": (2_236_682, 8.5),
    "preactresnet18": (11_172_170, 42.6),
    "preactresnet18_dws": (1_437_834, 5.5),
    "preactresnet18_msd": (11_171_146, 42.6),
    "preactresnet50": (23_513_162, 89.7),
    "resnet18": (11_173_962, 42.6),
    "resnet20": (269_722, None),
    "resnet20_wide": (1_676_530, 6.4),
    "resnet50_imagenet": (25_557_032, 97.5),
    "robnet_free": (5_439_790, 20.8),
    "tiny": (991_658, None),
    "vgg16": (14_728_266, 56.2),
    "vgg16_hydra": (15_311_818, 58.4),
    "wrn28_4": (5_849_050, 22.3),
}

# Names that public checkpoints of these networks have, with their shapes.
NAMES = {
    "mobilenetv1": {"conv1.weight": (32, 3, 3, 3), "layers.1.conv1.weight": (64, 1, 3, 3), "linear.weight": (10, 1024)},
    "mobilenetv2": {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.2.running_mean": (16,),
        "features.2.conv.1.0.weight": (96, 1, 3, 3),
        "features.17.conv.3.weight": (320,),
        "features.18.0.weight": (1280, 320, 1, 1),
        "classifier.1.weight": (10, 1280),
    },
    "preactresnet18": {"layer1.0.bn1.weight": (64,), "layer2.0.shortcut.0.weight": (128, 64, 1, 1), "bn.weight": (512,)},
    "preactresnet18_msd": {"conv1.weight": (64, 3, 3, 3), "layer4.1.conv2.weight": (512, 512, 3, 3), "linear.bias": (10,)},
    "preactresnet50": {"layer1.0.shortcut.0.weight": (256, 64, 1, 1), "layer4.2.conv3.weight": (2048, 512, 1, 1)},
    "resnet18": {"bn1.weight": (64,), "layer2.0.shortcut.1.running_var": (128,), "linear.weight": (10, 512)},
    "resnet20": {"conv1.weight": (16, 3, 3, 3), "layer3.2.bn2.weight": (64,), "linear.weight": (10, 64)},
    "resnet50_imagenet": {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer3.5.bn3.running_mean": (1024,),
        "fc.weight": (1000, 2048),
    },
    "robnet_free": {
        "stem.0.weight": (108, 3, 3, 3),
        "cells.0.preprocess0.op.1.weight": (36, 108, 1, 1),
        "cells.0._ops.0.op.conv.op.1.weight": (36, 1, 3, 3),
        "cells.0._ops.6.op.op.2.weight": (36, 36, 1, 1),
        "cells.6._ops.0.op.res.conv_2.weight": (36, 72, 1, 1),
        "cells.7.preprocess0.bn.running_mean": (72,),
        "classifier.weight": (10, 576),
    },
    "vgg16": {"features.0.bias": (64,), "features.41.running_mean": (512,), "classifier.weight": (10, 512)},
    "vgg16_hydra": {"features.40.weight": (512, 512, 3, 3), "classifier.0.weight": (256, 2048), "classifier.4.bias": (10,)},
    "wrn28_4": {"block1.layer.0.convShortcut.weight": (64, 16, 1, 1), "block3.layer.3.conv2.weight": (256,) * 2 + (3, 3)},
}

# What the pipeline is given. The calibrated method is as fast as its layers are few: others are excluded.
WITHOUT_1X1 = {"keep_1x1": False}
PIPELINES = {
    "mobilenetv1": (16, "calibrated", {**WITHOUT_1X1, "exclude": [f"layers.{i}.*" for i in range(2, 13)]}),
    "mobilenetv2": (8, "paper", WITHOUT_1X1),
    "preactresnet18_dws": (8, "paper", WITHOUT_1X1),
    "resnet20": (16, "calibrated", {"exclude": ["layer[23]*"]}),
    "resnet50_imagenet": (32, "paper", {}),
    "robnet_free": (8, "uniform", {**WITHOUT_1X1, "exclude": ["cells.[1-9]*"]}),
    "tiny": (16, "calibrated", {"exclude": ["layer[23]*"]}),
    "vgg16": (32, "paper", {}),
    "vgg16_hydra": (32, "paper", {}),
    "wrn28_4": (16, "calibrated", {"exclude": ["block[23]*", "block1.layer.[123]*"]}),
}

SEPARABLE = ("mobilenetv1", "mobilenetv2", "preactresnet18_dws", "robnet_free")


def images(count, size, seed=1):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def trained(name):
    """A network whose BatchNorms have statistics of their own, as after training."""
    torch.manual_seed(0)
    model = zoo.build(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.5)
    return model


def test_the_tables_cover_the_zoo():
    assert set(SIZES) == set(zoo.NETWORKS)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_papers(name):
    count, megabytes = SIZES[name]
    parameters = sum(p.numel() for p in zoo.build(name).parameters())
    assert parameters == count
    if megabytes is not None:
        assert round(parameters * 4 / 2**20, 1) == megabytes


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_have_public_names(name):
    state = zoo.build(name).state_dict()
    assert {key: tuple(state[key].shape) for key in NAMES[name] if key in state} == NAMES[name]
    assert not [key for key in state if key.startswith("normalize")]


@pytest.mark.parametrize("name", SIZES)
def test_networks_give_logits_and_can_be_trained(name):
    model = trained(name)
    assert not model.training
    x = images(2, 32)
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(model(x), logits)
    assert logits.shape == (2, 1000 if name == "resnet50_imagenet" else 10)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])
    model.train()(x).square().sum().backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    assert not [key for key, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]


@pytest.mark.parametrize("name", ["resnet50_imagenet", "vgg16_hydra", "mobilenetv2"])
def test_the_number_of_classes_can_be_chosen(name):
    assert zoo.build(name, num_classes=7)(images(1, 32)).shape == (1, 7)
    with pytest.raises(GdwsError, match=f"{name} got num_classes 0: expected at least 1"):
        zoo.build(name, num_classes=0)


def test_an_unknown_network_is_named_with_the_known_ones():
    with pytest.raises(GdwsError, match=r"no network 'vgg17': expected one of mobilenetv1, .*, wrn28_4$"):
        zoo.build("vgg17")


@pytest.mark.parametrize(
    ("name", "constants"),
    [("preactresnet18", CIFAR10), ("resnet20", IMAGENET), ("resnet50_imagenet", IMAGENET), ("vgg16", None), ("wrn28_4", None)],
)
def test_the_first_convolution_sees_the_images_that_public_training_gave_it(name, constants):
    model = zoo.build(name)
    seen = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = images(1, 32)
    model(x)
    mean, std = [torch.tensor(part).view(3, 1, 1) for part in constants or ((0.0,) * 3, (1.0,) * 3)]
    assert torch.equal(seen[0], (x - mean) / std)


@pytest.mark.parametrize("name", SIZES)
def test_every_network_runs_the_whole_pipeline(name, tmp_path):
    size, method, options = PIPELINES.get(name, (8, "paper", {}))
    model, x = trained(name), images(32, size)
    made = gdws.plan(model, [x], gdws.Macs(0.6), METHODS[method](attack=None, **options))
    assert made.macs <= 0.6
    compressed = gdws.apply(model, made, [x])
    before, after = gdws.network_cost(model, x[:1]), gdws.network_cost(compressed, x[:1])
    assert before.macs - after.macs == sum(layer.dense_macs - layer.macs for layer in made.layers) > 0
    gdws.save(compressed, tmp_path / "out", base=f"zoo:{name}", export=False)
    loaded = gdws.load(tmp_path / "out", zoo.build(name))
    with torch.no_grad():
        logits = compressed(x)
        assert torch.equal(loaded(x), logits)
        assert logits.isfinite().all()
        assert not torch.equal(logits, model(x))


@pytest.mark.parametrize("name", SEPARABLE)
def test_networks_without_anything_to_replace_say_so(name):
    model, x = trained(name), images(4, 16)
    for method in METHODS.values():
        with pytest.raises(GdwsError, match=r"Macs\(0.5\) is out of reach, none of the \d+ convolutions .*depthwise: \d+"):
            gdws.plan(model, [x], gdws.Macs(0.5), method(attack=None))
