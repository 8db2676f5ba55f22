"""CLIP, SigLIP and SigLIP2 of transformers from folders made here, random weights, offline."""

from __future__ import annotations

import json

import pytest
import torch

from adte import InputError
from adte.images import base_view
from adte.models import load_model
from adte.models.huggingface import read_preprocess
from adte.testing.models import CHECKS, TEXTS, pixels
from models.small_towers import make_tokenizer, needs

transformers = needs("transformers", "hf")

TEXT = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 16}  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
CLIP_PIXELS = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
               "resample": 3, "do_center_crop": True, "image_mean": [0.4, 0.5, 0.6],
               "image_std": [0.2, 0.25, 0.3]}  # fmt: skip
SIGLIP_PIXELS = {"size": {"height": 32, "width": 32}, "resample": 2,
                 "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}  # fmt: skip


def build(kind, folder):
    torch.manual_seed(1)
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config={**TEXT, "eos_token_id": 299, "bos_token_id": 298, "pad_token_id": 299},
            vision_config=VISION,
            projection_dim=24,
        )
        facts = CLIP_PIXELS
    elif kind == "siglip":
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
        facts = SIGLIP_PIXELS
    else:
        vision = {k: v for k, v in VISION.items() if k != "image_size"} | {"num_patches": 16}
        config = transformers.Siglip2Config(text_config=TEXT, vision_config=vision)
        facts = {"max_num_patches": 16, "resample": 2, "image_mean": [0.5] * 3,
                 "image_std": [0.5] * 3}  # fmt: skip
    net = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        net.logit_scale.fill_(3.0)  # else SigLIP's is random
        if hasattr(net, "logit_bias"):
            net.logit_bias.fill_(-10.0)
    net.save_pretrained(folder)
    make_tokenizer(folder, clip=kind == "clip")
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return net.eval()


@pytest.fixture(scope="module", params=["clip", "siglip", "siglip2"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    net = build(request.param, folder)
    return load_model(f"hf:{folder}", dtype="float32"), net, folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_conformance(pair, check):
    check(pair[0])


def test_agrees_with_transformers(pair):
    """The whole model's own forward, on its processor's full-length tokens."""
    model, net, folder = pair
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokens(TEXTS, padding="max_length", truncation=True, max_length=16, return_tensors="pt")
    x = pixels(model)
    inputs = {"pixel_values": x}
    if model.kind == "siglip2":
        patches = torch.nn.functional.unfold(x, 8, stride=8)  # (N, 3·64, 16), channels first
        patches = patches.reshape(2, 3, 64, 16).permute(0, 3, 2, 1).reshape(2, 16, -1)
        inputs = {
            "pixel_values": patches,
            "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]] * 2),
        }
    with torch.no_grad():
        out = net(input_ids=ids["input_ids"], **inputs)
        torch.testing.assert_close(model.encode_image(x), out.image_embeds, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.encode_text(TEXTS), out.text_embeds, rtol=0, atol=1e-5)
        logits = model.logits(model.encode_image(x), model.encode_text(TEXTS))
    torch.testing.assert_close(logits, out.logits_per_image, rtol=1e-4, atol=1e-4)


def test_preprocessing_comes_from_the_folder(pair):
    model = pair[0]
    p = model.preprocess
    want = {
        "clip": ((0.4, 0.5, 0.6), "bicubic", "shortest"),
        "siglip": ((0.5, 0.5, 0.5), "bilinear", "squash"),
        "siglip2": ((0.5, 0.5, 0.5), "bilinear", "squash"),
    }[model.kind]
    assert (p.mean, p.interpolation, p.resize) == want
    assert p.size == 32
    assert model.name.startswith("hf:")


SIDES = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}


def test_a_resize_to_more_than_is_cut():
    """The base view showed all of the square where the model's own shows its middle."""
    import numpy as np

    own = transformers.CLIPImageProcessor(**SIDES)
    config = transformers.CLIPConfig(vision_config=VISION)
    preprocess = read_preprocess(own.to_dict(), config)
    assert (preprocess.size, preprocess.whole, preprocess.resize) == (32, 40, "shortest")
    y, x = np.mgrid[:60, :80]
    image = np.stack([3 * x, 4 * y, x + y], -1).astype(np.uint8)
    want = own(image, return_tensors="pt")["pixel_values"][0]
    levels = (base_view(image, preprocess) - want).abs() * 255 * torch.tensor(own.image_std)[0]
    assert levels.max() < 3


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({"size": 40, "crop_size": 32}, (32, 0.8, "shortest")),
        ({"crop_size": {"height": 32, "width": 32}}, (32, 1.0, "shortest")),
        ({**SIDES, "size": {"height": 40, "width": 40}}, (32, 0.8, "squash")),
        ({"do_center_crop": False, "size": {"height": 40, "width": 40}}, (40, 1.0, "squash")),
        ({}, (32, 1.0, "shortest")),
    ],
)
def test_sides(facts, want):
    config = transformers.CLIPConfig(vision_config=VISION)
    p = read_preprocess(facts, config)
    assert (p.size, p.crop, p.resize) == want
    p = read_preprocess({**facts, "do_normalize": False}, config)
    assert (p.mean, p.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    "facts",
    [
        {"resample": 1},
        {"do_resize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"do_center_crop": False, "size": {"shortest_edge": 32}},
        {"size": {"shortest_edge": 24}, "crop_size": 32},
        {"size": {"height": 32, "width": 40}},
        {"crop_size": {"height": 32, "width": 40}},
    ],
    ids=str,
)
def test_what_a_processor_does_and_we_do_not(facts):
    with pytest.raises(InputError, match=r"the image processor has .* cannot be done here; choose"):
        read_preprocess(facts, transformers.CLIPConfig(vision_config=VISION))


@pytest.mark.slow
def test_random_weights_and_a_tokenizer_from_elsewhere(pair, tmp_path):
    model, _, folder = pair
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(InputError, match=r"no tokenizer.*tokenizer=THAT_FOLDER"):
        load_model(f"hf:{bare}", weights="random")
    other = load_model(f"hf:{bare}", weights="random", tokenizer=folder, dtype="float32")
    with torch.no_grad():
        assert (other.encode_text(TEXTS) - model.encode_text(TEXTS)).abs().max() > 1e-3
    with pytest.raises(InputError, match=r"lacks a readable model.safetensors"):
        load_model(f"hf:{bare}", tokenizer=folder)


def test_weights_that_do_not_fit(tmp_path, pair):
    _, net, folder = pair
    state = {k: v.clone() for k, v in net.state_dict().items()}
    name = "text_model.embeddings.position_embedding.weight"
    state[name] = torch.zeros(20, 32)
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(InputError, match=rf"'{name}' has shape \(20, 32\).*\(16, 32\)"):
        load_model(f"hf:{folder}", weights=tmp_path / "other.pt")


def test_a_folder_without_all_tensors_is_not_filled_with_random_ones(tmp_path):
    from safetensors.torch import load_file, save_file

    build("clip", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack tensor 'text_projection.weight'"):
        load_model(f"hf:{tmp_path}")


def test_bad_sources(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"folder './nothing' does not exist"):
        load_model("hf:./nothing")
    with pytest.raises(InputError, match=r"not on this machine and the hub cannot be reached") as e:
        load_model("hf:nobody/has-this-model")
    assert "\n" not in str(e.value)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"type 'bert'.*choose one of type clip"):
        load_model(f"hf:{tmp_path}")
