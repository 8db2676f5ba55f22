"""The contract: what a model offers, what it refuses, and the fingerprint of its weights."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from adte import InputError, Model
from adte.images import Preprocess
from adte.models import FixedClasses, load_model
from adte.models._weights import SAMPLED, fingerprint
from adte.testing.models import CHECKS
from adte.testing.small import SmallModel


class ImageTower(Model):
    """Unit features, and nobody to read texts."""

    name, dim, logit_scale, preprocess = "eye", 3, 10.0, Preprocess(size=32)

    def encode_image(self, pixels):
        return nn.functional.normalize(pixels.mean((2, 3)), dim=-1)


class Wordy(ImageTower):
    def encode_text(self, texts):
        return nn.functional.normalize(torch.ones(len(texts), 3), dim=-1)


class Colours(FixedClasses):
    def __init__(self):
        super().__init__("colours", ("red", "green", "blue"), ("r", "g", "b"), Preprocess(size=32))

    def classify(self, pixels):
        return pixels.mean((2, 3)).to(torch.promote_types(pixels.dtype, torch.float32))


FEATURES = {"features", "image tower"}
TEXT = FEATURES | {"text tower", "class weights"}


@pytest.mark.parametrize(
    ("model", "offers"),
    [
        (ImageTower(), FEATURES),
        (Wordy(), TEXT),
        (SmallModel(), TEXT | {"embeddings"}),
        (Colours(), {"image tower"}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_offers_follow_from_what_is_defined(model, offers):
    assert model.offers == offers
    model.require({"logits", "pixels", "image tower"})
    for need in {"features", "class weights", "text tower", "embeddings"} - offers:
        message = rf"method 'x' needs {need}, which model '{model.name}'.* does not offer; choose"
        with pytest.raises(InputError, match=message):
            model.require({"logits", need}, by="method 'x'")


def test_a_device_without_float64_holds_the_towers_and_no_method_within_them(monkeypatch):
    monkeypatch.setattr(SmallModel, "device", torch.device("mps"))
    SmallModel().require({"logits", "features", "class weights", "text tower"})
    for need in ("image tower", "embeddings"):
        message = r"method 'x' computes within the model, .* on mps, .*; choose device='cpu'"
        with pytest.raises(InputError, match=message):
            SmallModel().require({"features", need}, by="method 'x'")


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ["small", "timm"])
def test_conformance(name, check):
    if name == "timm":
        if find_spec("timm") is None:  # importing it here would import torchvision unprepared
            pytest.skip("needs timm")
        torch.manual_seed(0)
        check(load_model("timm:resnet10t.c3_in1k", weights="random", dtype="float32"))
    else:
        check(SmallModel())


def test_what_is_not_offered_is_refused_by_name():
    for model in (ImageTower(), Colours()):
        for call in (
            lambda m: m.encode_text(["a"]),
            lambda m: m.token_embeddings(["a"]),
            lambda m: m.encode_embeddings(torch.zeros(1, 1), torch.zeros(1, 1, 1)),
        ):
            with pytest.raises(InputError, match=f"which model '{model.name}'.* does not offer"):
                call(model)
    with pytest.raises(InputError, match="'eye' has no classes of its own"):
        ImageTower().logits(torch.zeros(2, 3))
    assert (ImageTower().device.type, ImageTower().dtype) == ("cpu", torch.float32)


def test_features_of_fixed_classes_are_logits():
    model, x = Colours(), torch.randn(2, 3, 4, 4)
    z = model.encode_image(x)
    assert torch.equal(model.logits(z), z)
    assert torch.equal(model.logits(z, model.class_weights()), z)
    assert model.logits(z.half()).dtype == torch.float32
    some = model.choose(["blue", "red"])
    assert torch.equal(some.encode_image(x), z[:, [2, 0]])
    assert (some.classes, some.ids, some.dim) == (("blue", "red"), ("b", "r"), 2)
    assert torch.equal(model.choose(["?", "?"], ["g", "b"]).encode_image(x), z[:, 1:])
    assert model.dim == 3
    with pytest.raises(InputError, match=r"shape \(2, 3, 4, 4\) are not logits over the 3 classes"):
        model.logits(x)
    with pytest.raises(InputError, match="'pink' is not among the 3 fixed classes"):
        model.choose(["red", "pink"])


def test_a_name_of_two_fixed_classes_says_neither():
    model, x = Colours(), torch.randn(2, 3, 4, 4)
    model.classes = ("red", "blue", "blue")
    z = model.encode_image(x)
    assert torch.equal(model.choose(model.classes).encode_image(x), z)
    assert torch.equal(model.choose(["blue", "red"], ["g", "r"]).encode_image(x), z[:, [1, 0]])
    assert torch.equal(model.choose(["red"]).encode_image(x), z[:, :1])
    with pytest.raises(InputError, match=r"2 classes of model 'colours' are called 'blue'; .* 'g'"):
        model.choose(["blue", "red"])


# --------------------------------------------------------------------------- fingerprints


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_model_has_one_fingerprint_in_any_dtype(dtype):
    assert load_model("tiny", dtype=dtype).fingerprint == load_model("tiny").fingerprint
    assert SmallModel().fingerprint == SmallModel("another name").fingerprint
    if dtype != "float16":  # which rounds otherwise
        kind = getattr(torch, dtype)
        assert SmallModel().to(kind).float().fingerprint == SmallModel().fingerprint
        assert SmallModel().to(kind).fingerprint == SmallModel().fingerprint


def test_other_weights_have_another_fingerprint():
    model, seen = SmallModel(), set()
    for name, _ in model.named_parameters():
        for share in (0, 0.5, 1):  # the first, middle and last weight of every tensor
            other = copy.deepcopy(model)
            with torch.no_grad():
                flat = other.get_parameter(name).view(-1)
                assert len(flat) < 2 * SAMPLED  # so that every one is looked at
                flat[int(share * (len(flat) - 1))] += 0.01
            seen.add(other.fingerprint)
    assert model.fingerprint not in seen
    assert len(seen) > 20
    with torch.no_grad():  # training in place is noticed
        model.project.weight.mul_(1.001)
    assert model.fingerprint != SmallModel().fingerprint
    model.load_state_dict(SmallModel().state_dict())
    assert model.fingerprint == SmallModel().fingerprint
    model.image_tower[1].running_mean += 1  # what a batch norm has learned counts too
    assert model.fingerprint != SmallModel().fingerprint


def test_a_slight_change_of_all_weights_of_a_large_tensor_is_seen():
    a, b = nn.Linear(512, 1024), nn.Linear(512, 1024)
    b.load_state_dict(a.state_dict())
    assert fingerprint(a) == fingerprint(b) != fingerprint(b.to("meta"))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.weight.mul_(1 + 1e-4)
    assert fingerprint(a) != fingerprint(b)


def test_a_fingerprint_of_any_bits_stays_in_other_dtypes():
    """Weights that nobody set hold whatever memory held, NaN of every form among it."""
    net = nn.Linear(40, 40)
    bits = torch.randint(-(2**31), 2**31 - 1, (40, 40), generator=torch.Generator().manual_seed(0))
    net.weight.data = bits.to(torch.int32).view(torch.float32)
    mine = fingerprint(net)
    for dtype in (torch.bfloat16, torch.float64):
        assert fingerprint(copy.deepcopy(net).to(dtype)) == mine
