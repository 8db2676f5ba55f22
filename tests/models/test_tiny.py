"""The embedded model: its tokenizer, its towers, and what the shipped weights can do."""

from __future__ import annotations

import json
import pickle
from importlib import resources
from pathlib import Path

import pytest
import torch
from torch import nn

from adte.images import base_view
from adte.models.tiny import PAD, START, Tiny, load_longtail, load_tiny, tiny_classes


@pytest.fixture(scope="module")
def model() -> Tiny:
    return load_tiny()


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_the_shipped_file_is_small() -> None:
    data = resources.files("adte").joinpath("assets/tiny.safetensors").read_bytes()
    assert len(data) <= 16e6


def test_two_loads_agree_to_the_bit(model: Tiny, pixels: torch.Tensor) -> None:
    other = load_tiny()
    with torch.inference_mode():
        assert torch.equal(model.encode_image(pixels), other.encode_image(pixels))
        assert torch.equal(model.encode_text(["a cat"]), other.encode_text(["a cat"]))


def test_folding_keeps_the_output_and_the_original(model: Tiny, pixels: torch.Tensor) -> None:
    folded = model.fold()
    norms = [m for m in model.image_tower.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.image_tower.modules())
    with torch.inference_mode():
        expected = model.encode_image(pixels)
        torch.testing.assert_close(folded.encode_image(pixels), expected, atol=1e-5, rtol=0)
    assert folded.text_tower is model.text_tower


def test_gradients_reach_pixels_norms_and_prompts(model: Tiny, pixels: torch.Tensor) -> None:
    x = pixels[:2].clone().requires_grad_()
    norm = next(m for m in model.image_tower.modules() if isinstance(m, nn.BatchNorm2d))
    ids, lengths = model.tokenizer(["a photo of a cat.", "dog"])
    prompt = model.text_tower.embed(ids).detach().requires_grad_()
    z = model.encode_image(x) @ model.text_tower.forward_embedded(prompt, lengths).T
    of_x, of_norm, of_prompt = torch.autograd.grad(z.sum(), [x, norm.weight, prompt])
    assert of_x.abs().sum() > 0
    assert of_norm.abs().sum() > 0
    assert of_prompt[0].abs().sum() > 0
    assert of_prompt[1, int(lengths[1]) :].abs().sum() == 0  # padding changes nothing


@pytest.mark.parametrize(
    "text",
    ["", "   ", "猫", "Ångström café", "🐈 cat", "\ud800", "a\x00b", "x" * 10_000, "cat " * 5_000],
)
def test_every_string_has_an_embedding(model: Tiny, text: str) -> None:
    ids = model.tokenizer.encode(text)
    assert ids[0] == START
    assert len(ids) <= 64
    assert PAD not in ids
    with torch.inference_mode():
        assert torch.isfinite(model.encode_text([text])).all()


def test_the_tokenizer_takes_the_longest_piece_and_ignores_case(model: Tiny) -> None:
    tokenizer = model.tokenizer
    pieces = [tokenizer.vocab[i] for i in tokenizer.encode("Elephants, É")]
    assert pieces == ["[START]", "elephant", "##s", ",", "e"]
    assert len(tokenizer.vocab) == len(set(tokenizer.vocab))


def test_it_can_be_pickled(model: Tiny, pixels: torch.Tensor) -> None:
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin.encode_text(["a cat"]), model.encode_text(["a cat"]))


def test_no_text_gives_no_rows(model: Tiny) -> None:
    with torch.inference_mode():
        assert model.encode_text([]).shape == (0, 128)


@pytest.mark.parametrize(
    ("word", "near", "far"),
    [("cat", "kitten", "truck"), ("automobile", "car", "frog"), ("ship", "boat", "banana")],
)
def test_words_lie_near_their_kin(model: Tiny, word: str, near: str, far: str) -> None:
    with torch.inference_mode():
        a, b, c = model.encode_text([word, near, far])
    assert a @ b > a @ c + 0.2


def test_a_template_stays_near_its_name(model: Tiny) -> None:
    names = [str(row["name"]) for row in tiny_classes()]
    with torch.inference_mode():
        plain = model.encode_text(names)
        photo = model.encode_text([f"a photo of a {name}." for name in names])
    assert (photo @ plain.T).argmax(1).eq(torch.arange(200)).float().mean() > 0.97


def test_the_recorded_frequencies_are_long_tailed() -> None:
    rows = tiny_classes()
    counts = sorted(int(str(row["count"])) for row in rows)
    assert len(rows) == 200
    assert [row["wnid"] for row in rows] == sorted(str(row["wnid"]) for row in rows)
    assert (counts[0], counts[-1]) == (25, 500)


@pytest.fixture(scope="module")
def photographs(shared_data: Path, model: Tiny) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of Tiny-ImageNet as both models see them, and their classes."""
    folder = shared_data / "tiny-imagenet-val"
    if not folder.is_dir():
        pytest.skip("needs Tiny-ImageNet's validation photographs, which are not here")
    folders = [folder / str(row["wnid"]) for row in tiny_classes()]
    files = [(p, k) for k, f in enumerate(folders) for p in sorted(f.iterdir())]
    views = torch.stack([base_view(p, model.preprocess) for p, _ in files])
    return views, torch.tensor([k for _, k in files])


@pytest.mark.slow
@pytest.mark.parametrize(("load", "least", "gap"), [(load_tiny, 0.41, -1.0),
                                                    (load_longtail, 0.37, 0.20)])  # fmt: skip
def test_zero_shot_on_photographs(load, least: float, gap: float, photographs) -> None:
    (views, labels), model, rows = photographs, load(), tiny_classes()
    with torch.inference_mode():
        weights = model.encode_text([f"a photo of a {r['name']}." for r in rows])
        tower = model.fold()
        z = torch.cat([tower.encode_image(x) for x in views.split(250)])
    right = (z @ weights.T).argmax(1).eq(labels).float()
    order = torch.tensor([int(str(r["count"])) for r in rows]).argsort(descending=True)
    head, tail = (torch.isin(labels, part) for part in (order[:67], order[-66:]))
    assert right.mean() >= least
    assert right[head].mean() - right[tail].mean() >= gap


def test_the_card_names_the_figures() -> None:
    card = resources.files("adte").joinpath("assets/TINY.md").read_text("utf-8")
    assert "tiny-classes.json" in card
    assert "evaluate.py" in card


def test_both_models_share_the_text_tower(model: Tiny) -> None:
    other = load_longtail()
    assert (model.name, other.name) == ("tiny", "tiny-longtail")
    with torch.inference_mode():
        assert torch.equal(model.encode_text(["a cat"]), other.encode_text(["a cat"]))
    assert model.fingerprint != other.fingerprint
    assert bundle_fingerprint("replay") == other.fingerprint


def bundle_fingerprint(name: str) -> str:
    recipe = resources.files("adte").joinpath(f"assets/{name}/recipe.json").read_text("utf-8")
    return str(json.loads(recipe)["fingerprint"])
