"""Networks as the Hugging Face hub keeps them, against timm and transformers themselves; and what a stranger's may not do."""

import json
import os
import shutil
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gdws
from gdws.core.errors import GdwsError
from gdws.core.inputs import floats_in
from gdws.models import hub, names

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
KEPT = []
"""Libraries of operators live as long as their objects."""


@pytest.fixture(scope="module")
def torchvision():
    """PyTorch without CUDA may have no build of it; another one is enough here, once its two missing operators are declared."""
    try:
        import torchvision
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            KEPT[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


@pytest.fixture
def timm(torchvision):
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(autouse=True)
def _no_connection(monkeypatch):
    """No test here may open one; a failure of pytest is no Exception, and so nothing turns it into a sentence."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("an address was looked up"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))


def write(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Some weights, and no configuration yet."""
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    return tmp_path


# timm


def timm_folder(timm, path, name="test_resnet", **options):
    torch.manual_seed(0)
    network = timm.create_model(name, **options).eval()
    timm.models.save_for_hf(network, path, safe_serialization=True)
    return network


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_resnet", {}),
        ("test_efficientnet", {"num_classes": 7}),
        ("test_convnext", {"in_chans": 1, "num_classes": 2}),
        ("test_resnet", {"num_classes": 0}),
    ],
)
def test_a_network_of_timm_is_read_from_a_folder(timm, tmp_path, name, options):
    network = timm_folder(timm, tmp_path / "net", name, **options)
    images = IMAGES[:, : options.get("in_chans", 3)]
    mean, std = (torch.tensor(network.pretrained_cfg[part]).view(1, -1, 1, 1) for part in ("mean", "std"))
    if options.get("in_chans") == 1:
        record = json.loads((tmp_path / "net/config.json").read_text())
        mean, std = (torch.tensor(record["pretrained_cfg"][part]).view(1, -1, 1, 1) for part in ("mean", "std"))
    found = gdws.models.resolve(str(tmp_path / "net"))
    with torch.no_grad():
        assert torch.equal(found(images), network((images - mean) / std))
    assert not found.training


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "hf-hub:stranger/net"}, "of the architecture 'hf-hub:stranger/net': expected one that timm"),
        ({"architecture": "local-dir:/tmp"}, "expected one that timm"),
        ({"architecture": "nothing"}, "expected one that timm"),
        ({"model_args": {"pretrained": True}}, "has 'pretrained' among model_args"),
        ({"model_args": {"checkpoint_path": "/tmp/x.pth"}}, "has 'checkpoint_path' among model_args"),
        ({"model_args": {"pretrained_strict": False}}, "has 'pretrained_strict' among model_args"),
        ({"model_args": {"nothing": 1}}, "timm cannot build test_resnet as"),
        ({"model_args": [1]}, "expected pretrained_cfg and model_args as dictionaries"),
        ({"pretrained_cfg": "x"}, "expected pretrained_cfg and model_args as dictionaries"),
        ({"pretrained_cfg": {"mean": [0, 0, 0], "std": [1, 1, 0]}}, "std above 0"),
        ({"pretrained_cfg": {"mean": ["a"], "std": [1]}}, "expected as many numbers"),
        ({"pretrained_cfg": {"mean": [0, 0], "std": [1]}}, "expected as many numbers"),
        ({"model_args": {"num_classes": 5}}, "does not fit the model"),
        ({"num_classes": "x"}, "timm cannot build test_resnet"),
    ],
)
def test_other_settings_of_timm_are_told(timm, tmp_path, changes, words):
    timm_folder(timm, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path, **record | changes)
    with pytest.raises(GdwsError, match=words):
        gdws.models.resolve(str(tmp_path))


def test_places_that_timm_would_fetch_from_are_not_asked(timm, tmp_path):
    network = timm_folder(timm, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    elsewhere = {"url": "https://stranger/x.pth", "hf_hub_id": "stranger/net", "file": "/tmp/x", "source": "url"}
    write(tmp_path, **record | {"pretrained_cfg": {**record["pretrained_cfg"], **elsewhere}})
    found = gdws.models.resolve(str(tmp_path))
    assert all(torch.equal(*pair) for pair in zip(found.network.parameters(), network.parameters(), strict=True))


def test_weights_in_half_precision_become_floats(timm, tmp_path):
    timm_folder(timm, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    halves = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    save_file(halves, tmp_path / "model.safetensors")
    found = gdws.models.resolve(str(tmp_path))
    assert {value.dtype for value in found.parameters()} == {torch.float32}
    next(value for value in tensors.values() if value.is_floating_point())[0] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(GdwsError, match="NaN or infinite"):
        gdws.models.resolve(str(tmp_path))


# transformers


def tiny(transformers, kind):
    stages = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    torch.manual_seed(0)
    if kind == "classifier":
        return transformers.ResNetForImageClassification(transformers.ResNetConfig(**stages, num_labels=4)).eval()
    if kind == "backbone":
        return transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[8] * 4, depths=[1] * 4)).eval()
    if kind == "segmentation":
        backbone = transformers.ResNetConfig(**stages, out_features=["stage1", "stage2", "stage3", "stage4"])
        settings = transformers.UperNetConfig(backbone_config=backbone, hidden_size=16, auxiliary_in_channels=16)
        return transformers.UperNetForSemanticSegmentation(settings).eval()
    settings = transformers.Swin2SRConfig(image_size=32, embed_dim=12, depths=[1], num_heads=[2], upscale=2)
    return transformers.Swin2SRForImageSuperResolution(settings).eval()


def keep(transformers, path, kind="classifier", **preprocessing):
    network = tiny(transformers, kind)
    network.save_pretrained(path)
    if preprocessing:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return network


def alike(one, other):
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(floats_in(one), floats_in(other), strict=True))


@pytest.mark.parametrize("kind", ["classifier", "backbone", "segmentation", "super-resolution"])
def test_a_network_of_transformers_is_read_from_a_folder(transformers, tmp_path, kind, capfd):
    network = keep(transformers, tmp_path, kind)
    capfd.readouterr()
    found = gdws.models.resolve(str(tmp_path))
    assert capfd.readouterr() == ("", "")
    with torch.no_grad():
        assert alike(found(IMAGES), network(IMAGES))
    assert floats_in(found(IMAGES))
    assert not found.training


@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ({"do_normalize": True, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}, "both"),
        ({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 255}, "both"),
        ({"do_normalize": False, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}, "none"),
        ({"do_rescale": True, "rescale_factor": 2 / 255, "rescale_offset": True}, "signed"),
        ({"do_rescale": False}, "bytes"),
    ],
)
def test_pixels_are_prepared_as_the_folder_says(transformers, tmp_path, steps, change):
    network = keep(transformers, tmp_path, **steps)
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    prepared = {"both": (IMAGES - mean) / std, "none": IMAGES, "signed": 2 * IMAGES - 1, "bytes": 255 * IMAGES}[change]
    found = gdws.models.resolve(str(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(found(IMAGES).logits, network(prepared).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"do_flip_channel_order": True}, "blue, green, red"),
        ({"rescale_factor": "x"}, "the rescale_factor 'x'"),
        ({"rescale_factor": 0}, "the rescale_factor 0"),
        ({"do_normalize": True}, "expected as many numbers"),
        ({"image_mean": [0.5], "image_std": [0]}, "std above 0"),
    ],
)
def test_other_preparations_are_told(transformers, tmp_path, steps, words):
    keep(transformers, tmp_path, **steps)
    with pytest.raises(GdwsError, match=words):
        gdws.models.resolve(str(tmp_path))


def test_weights_that_do_not_fit_are_told(transformers, tmp_path):
    keep(transformers, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    names = sorted(name for name in tensors if name.endswith("convolution.weight"))
    for changed in ({names[0]: tensors[names[0]][:, :1].clone()}, {}):
        kept = {name: value for name, value in tensors.items() if changed or name != names[0]}
        save_file(kept | changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(GdwsError, match=r"ResNetForImageClassification"):
            gdws.models.resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Stranger"]}, "'Stranger' and type 'resnet': expected one that transformers"),
        ({"architectures": ["BertModel"]}, "'BertModel' and type 'resnet': expected one"),
        ({"architectures": ["PreTrainedModel"]}, "expected one that transformers"),
        ({"architectures": []}, "without an architecture"),
        ({"architectures": None}, "without an architecture"),
        ({"model_type": "stranger"}, r"expected one that transformers .* \(code in a repository is not run\)"),
        ({"model_type": 3}, "without an architecture"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "is quantized"),
        ({"hidden_sizes": "x"}, "transformers cannot build ResNetForImageClassification"),
    ],
)
def test_other_settings_of_transformers_are_told(transformers, tmp_path, changes, words):
    keep(transformers, tmp_path)
    write(tmp_path, **json.loads((tmp_path / "config.json").read_text()) | changes)
    with pytest.raises(GdwsError, match=words):
        gdws.models.resolve(str(tmp_path))


def test_code_and_places_in_a_folder_are_left_alone(transformers, tmp_path):
    network = keep(transformers, tmp_path)
    (tmp_path / "modeling.py").write_text("open('ran', 'w')\nclass Net: ...\n")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "stranger/net", "peft_type": "LORA"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    record = json.loads((tmp_path / "config.json").read_text())
    added = {
        "auto_map": {"AutoConfig": "modeling.Net", "AutoModelForImageClassification": "modeling.Net"},
        "attn_implementation": "stranger/kernel",
        "_attn_implementation": "stranger/kernel",
        "transformers_weights": "pytorch_model.bin",
        "_name_or_path": "stranger/net",
        "use_kernels": True,
        "fusion_config": {"patch_embeddings": True},
    }
    write(tmp_path, **record | added)
    found = gdws.models.resolve(str(tmp_path))
    with torch.no_grad():
        assert alike(found(IMAGES), network(IMAGES))
    assert not (tmp_path / "ran").exists()
    assert not os.path.exists("ran")


@pytest.mark.parametrize("timm_backbone", [True, False])
def test_a_backbone_elsewhere_is_not_fetched(transformers, tmp_path, timm_backbone):
    """transformers asks the hub for it while it reads the configuration."""
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    backbone = {"backbone": "stranger/net", "use_timm_backbone": timm_backbone, "use_pretrained_backbone": True}
    write(tmp_path, model_type="detr", architectures=["DetrForObjectDetection"], **backbone)
    constants = pytest.importorskip("huggingface_hub").constants
    offline = constants.HF_HUB_OFFLINE
    with pytest.raises(GdwsError, match="transformers cannot build DetrForObjectDetection"):
        gdws.models.resolve(str(tmp_path))
    assert offline == constants.HF_HUB_OFFLINE


# Folders and repositories


def test_folders_that_lack_something_are_told(folder):
    with pytest.raises(GdwsError, match="unknown model"):
        gdws.models.resolve(str(folder))
    write(folder, architecture="resnet18")
    with pytest.raises(GdwsError, match="has classes of its own: expected no number of classes, not 3"):
        gdws.models.resolve(str(folder), classes=3)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(GdwsError, match=r"has no model.safetensors: expected weights .* \(pickles are not read\)"):
        gdws.models.resolve(str(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected JSON"),
        ("[1]", "holds a list: expected a dictionary"),
        ("{" * 5000, "expected JSON"),
        ('{"a": ' * 100_000, "expected JSON"),
        ("{}", "without an architecture"),
        ('{"architecture": 3}', "without an architecture"),
    ],
)
def test_broken_configurations_are_told(folder, text, words):
    (folder / "config.json").write_text(text)
    with pytest.raises(GdwsError, match=words):
        gdws.models.resolve(str(folder))


@pytest.mark.parametrize(
    ("package", "config"),
    [("timm", {"architecture": "resnet18"}), ("transformers", {"model_type": "resnet", "architectures": ["ResNetModel"]})],
)
def test_missing_packages_are_told(folder, monkeypatch, package, config):
    monkeypatch.setitem(sys.modules, package, None)
    write(folder, **config)
    with pytest.raises(GdwsError, match=rf"needs the package {package} \(pip install 'gdws\[hub\]'\)"):
        gdws.models.resolve(str(folder))


class Hub:
    """What is used of huggingface_hub."""

    def __init__(self, folder):
        self.folder, self.asked, self.bars = folder, [], []
        self.utils = SimpleNamespace(
            are_progress_bars_disabled=lambda: False,
            disable_progress_bars=lambda: self.bars.append("off"),
            enable_progress_bars=lambda: self.bars.append("on"),
        )
        self.constants = SimpleNamespace(HF_HUB_OFFLINE=False)

    def snapshot_download(self, name, allow_patterns):
        self.asked.append((name, allow_patterns, self.constants.HF_HUB_OFFLINE))
        if name == "nobody/nothing":
            raise OSError("404: no such repository\nand more")
        return str(self.folder)


def test_a_repository_is_fetched_without_code_and_pickles(tmp_path, monkeypatch):
    fake = Hub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.delitem(sys.modules, "transformers.utils.logging", raising=False)
    monkeypatch.setattr(hub, "read", lambda folder, name: nn.Conv2d(3, 4, 3) if folder == tmp_path else None)
    assert isinstance(gdws.models.resolve("hf:someone/net-1.0"), nn.Conv2d)
    assert fake.asked == [("someone/net-1.0", ["config.json", "model.safetensors", "preprocessor_config.json"], False)]
    assert fake.bars == ["off", "on"]
    with pytest.raises(GdwsError, match=r"hf:nobody/nothing cannot be fetched: 404: no such repository$"):
        gdws.models.resolve("hf:nobody/nothing")


@pytest.mark.parametrize("name", ["../x", "a/b/c", "/tmp", "a b", "https://stranger/net", "a/b\n"])
def test_other_names_are_no_repositories(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(GdwsError, match="is the name of no repository: expected OWNER/NAME"):
        gdws.models.resolve(f"hf:{name}")


def test_a_folder_does_not_choose_a_repository():
    for name in ("hf:stranger/net", "hf:net", "/tmp/snapshot", "snapshot"):
        assert names.risk_of(name) == "which may be fetched from elsewhere"


def test_a_snapshot_is_compressed_like_any_network(transformers, tmp_path):
    keep(transformers, tmp_path / "net", image_mean=[0.5] * 3, image_std=[0.5] * 3)
    found = gdws.models.resolve(str(tmp_path / "net"))
    cost = gdws.network_cost(LogitsOnly(found), IMAGES[:1])
    assert cost.macs > 0
    shutil.rmtree(tmp_path / "net")
    with torch.no_grad():
        assert found(IMAGES).logits.shape == (2, 4)  # nothing is read late


class LogitsOnly(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits


# torchvision


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("resnet18", True),
        ("lraspp_mobilenet_v3_large", True),
        ("fcn_resnet50", True),
        ("ssdlite320_mobilenet_v3_large", False),
        ("fasterrcnn_mobilenet_v3_large_320_fpn", False),
    ],
)
def test_networks_of_torchvision_are_built_without_fetching(torchvision, monkeypatch, name, normalized):
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", lambda *_, **__: pytest.fail("weights were fetched"))
    found = gdws.models.resolve(f"torchvision:{name}", classes=5)
    assert isinstance(found, gdws.models.Normalized) == normalized
    if name.startswith(("lraspp", "fcn")):
        with torch.no_grad():
            assert found(IMAGES)["out"].shape == (2, 5, 64, 64)


def test_every_network_of_torchvision_that_is_listed_can_be_chosen(torchvision):
    module = torchvision.models
    for family in (module, module.segmentation, module.detection):
        for name in module.list_models(module=family):
            assert names.HARMLESS.fullmatch(f"torchvision:{name}")
    for name in ("raft_small", "quantized_resnet18", "r3d_18", "nothing"):
        with pytest.raises(GdwsError, match=f"torchvision has no network '{name}'"):
            gdws.models.resolve(f"torchvision:{name}")
