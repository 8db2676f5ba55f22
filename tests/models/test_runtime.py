"""Runtimes of the image tower by name, and OpenVINO's against the library's own."""

from __future__ import annotations

import copy
import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from adte import InputError, Views
from adte.data import Dataset, make_stream
from adte.evaluate.features.live import Live
from adte.models import load_model
from adte.models.runtime import RUNTIMES, with_runtime
from adte.testing.models import pixels
from models.small_towers import add_small_models, needs

open_clip = needs("open_clip", "clip")


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    add_small_models(open_clip, tmp_path_factory.mktemp("configs"))


def load(runtime, name="small-ViT-B-16", **options):
    torch.manual_seed(0)
    given = {"weights": "random", "device": "cpu", "dtype": "float32"} | options
    return load_model(name, runtime=runtime, **given)


def test_names():
    for call in (load, lambda name: with_runtime(load_model("tiny"), name)):
        with pytest.raises(InputError, match=r"unknown runtime 'quick'.*auto"):
            call("quick")
    assert list(RUNTIMES) == ["auto", "torch", "fast", "compile", "float8", "openvino"]


def test_auto_on_a_cpu_is_the_library():
    assert load("auto").runner is None
    assert load("torch").runner is None
    assert load_model("tiny", device="cpu").runner is None
    assert load("fast").runner.name == "fast"


def test_the_environment_says_what_auto_is(monkeypatch):
    monkeypatch.setenv("ADTE_RUNTIME", "fast")
    assert load("auto").runner.name == "fast"
    assert load("torch").runner is None  # what is said wins
    names, image = ("cat", "dog"), np.zeros((8, 8, 3), np.uint8)
    data = Dataset("x", names, names, [image], np.zeros(1, np.int64), ["0"])
    live = Live(load("auto"), torch.eye(2, 32), make_stream(data), Views(2))
    assert live.recipe.runtime == "fast"
    monkeypatch.setenv("ADTE_RUNTIME", "quick")
    with pytest.raises(InputError, match=r"ADTE_RUNTIME.*'quick'"):
        load("auto")


@pytest.mark.parametrize("runtime", ["fast", "compile", "float8", "openvino"])
def test_what_was_asked_for_and_cannot_be_had_is_an_error(runtime):
    with pytest.raises(InputError, match=r"(use|choose) .*") as error:
        load(runtime, name="tiny", weights=None)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def pair():
    if find_spec("openvino") is None:
        pytest.skip("needs openvino")
    return load("torch"), load("openvino")


@torch.no_grad()
def test_openvino_computes_what_the_library_does(pair):
    model, other = pair
    assert other.runner.name == "openvino"
    assert other.fingerprint == model.fingerprint
    for images in (1, 3):
        x = torch.randn(images, *pixels(model).shape[1:])
        assert other.runner.takes(other._visual, x)
        torch.testing.assert_close(
            other.encode_image(x), model.encode_image(x), rtol=1e-3, atol=1e-4
        )


def test_openvino_leaves_the_rest_to_the_library(pair):
    model, other = pair
    x = pixels(model)
    assert not other.runner.takes(other._visual, x)  # gradients are on
    assert torch.equal(other.encode_image(x), model.encode_image(x))
    with torch.no_grad():
        assert not other.runner.takes(other._visual, torch.zeros(1, 3, 32, 32))
        assert not other.runner.takes(other._visual, x.bfloat16())
        changed = copy.deepcopy(other)
        assert changed.runner is None
        for p in other.net.visual.parameters():
            p.mul_(1.0)
        assert not other.runner.takes(other._visual, x)
    with pytest.raises(InputError, match="load it there by name"):
        pickle.dumps(other.runner)


def test_openvino_is_for_cpus():
    with pytest.raises(InputError, match=r"in float32 or bfloat16, and the model is on cpu in"):
        load("openvino", dtype="float64")
