"""Image-only classifiers of timm with random weights, offline."""

from __future__ import annotations

import pytest
import torch

from adte import InputError
from adte.models import FixedClasses, load_model
from adte.models.base import fitted
from adte.models.prompts import class_weights
from adte.models.timm import load_timm
from models.small_towers import needs

timm = needs("timm", "timm")
NAME = "resnet10t.c3_in1k"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return load_model(f"timm:{NAME}", weights="random", dtype="float32")


def test_contract(model):
    assert isinstance(model, FixedClasses)
    assert model.offers == {"image tower"}
    assert not model.unit
    assert model.name == f"timm:{NAME}"
    assert not model.training
    assert len(model.classes) == len(model.ids) == 1000
    x = torch.randn(2, 3, 64, 64, requires_grad=True)
    z = model.logits(model.encode_image(x))
    assert z.shape == (2, 1000)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, model.net(x))
    torch.testing.assert_close(model.classify(x[1:]), z[1:], rtol=1e-4, atol=1e-4)
    assert torch.autograd.grad(z[0, 0], x)[0].abs().max() > 0


def test_classes_are_imagenets_in_timms_order(model):
    info = timm.data.ImageNetInfo("imagenet-1k")
    assert list(model.ids) == info.label_names()
    assert model.classes[1] == "goldfish"


@pytest.mark.parametrize(
    ("name", "size", "interpolation", "crop"),
    [
        ("resnext101_32x8d.fb_wsl_ig1b_ft_in1k", 224, "bilinear", 0.875),
        ("resnext101_32x8d.tv_in1k", 224, "bilinear", 0.875),
        ("vit_base_patch16_224.augreg_in1k", 224, "bicubic", 0.9),
    ],
)
def test_the_papers_models_and_their_preprocessing(name, size, interpolation, crop):
    with torch.device("meta"):  # shapes only
        model = load_timm(name, "random")
    p = model.preprocess
    assert (p.size, p.interpolation, model.preprocess.crop) == (size, interpolation, crop)


def test_random_weights_are_the_same_each_time():
    """What was extracted with them could not be gone on with."""
    torch.manual_seed(3)
    one, two = (load_model(f"timm:{NAME}", weights="random", dtype="float32") for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(3)))


def test_weights_from_a_file(model, tmp_path):
    torch.save({"state_dict": model.net.state_dict()}, tmp_path / "w.pt")
    again = load_model(f"timm:{NAME}", weights=tmp_path / "w.pt", dtype="float32")
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(again.classify(x), model.classify(x))
    assert again.fingerprint == model.fingerprint


def test_a_head_of_ones_own(tmp_path):
    net = timm.create_model("resnet10t", pretrained=False, num_classes=7)
    torch.save(net.state_dict(), tmp_path / "seven.pt")
    model = load_model(f"timm:{NAME}", weights=tmp_path / "seven.pt")
    assert model.classes == tuple("0123456")


def test_bad_names_and_files(model, tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    torch.save(timm.create_model("resnet14t", pretrained=False).state_dict(), tmp_path / "14.pt")
    torch.save({"encoder.weight": torch.zeros(3)}, tmp_path / "else.pt")
    for name, weights, message in (
        (NAME, tmp_path / "else.pt", r"'conv1.0.weight' is absent in the file and has shape"),
        ("resnet10x", "random", "did you mean 'timm:resnet10t'"),
        ("resnet10t.nothing", "random", "no weights 'nothing' of 'resnet10t'.*c3_in1k"),
        (NAME, tmp_path / "14.pt", r"another architecture: tensor 'layer1.0.conv1.weight' has "
         r"shape \(64, 64, 1, 1\) in the file and has shape \(64, 64, 3, 3\) in the model"),
        (NAME, None, "get model.safetensors of the hub repository 'timm/resnet10t.c3_in1k'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message) as error:
            load_model(f"timm:{name}", weights=weights)
        assert "\n" not in str(error.value)


def test_it_has_no_text_tower(model):
    with pytest.raises(InputError, match="fixed classes and no text tower"):
        class_weights(model, ["cat"])
    with pytest.raises(InputError, match="no text tower to need a tokenizer"):
        load_model(f"timm:{NAME}", weights="random", tokenizer="folder")


def test_it_is_narrowed_to_the_classes_of_a_data_set(model):
    """By id where the ids are its own, else by name; the weights stay shared."""
    x = torch.randn(2, 3, 64, 64)
    some = fitted(model, ["a", "b"], [model.ids[7], model.ids[1]])
    assert some.classes == (model.classes[7], "goldfish")
    assert some.dim == 2
    with torch.no_grad():
        want = model.classify(x)[:, [7, 1]]
        torch.testing.assert_close(some.encode_image(x), want)
        torch.testing.assert_close(some.logits(some.encode_image(x), some.class_weights()), want)
        one = some.choose(["goldfish"])
        torch.testing.assert_close(one.encode_image(x), want[:, 1:])
    assert some.fingerprint == model.fingerprint
    assert some.net is model.net
    with pytest.raises(InputError, match=r"'cat' is not among the 1000 fixed .*'goldfish', "):
        fitted(model, ["cat"], ["n0"])
