"""Models that a user already holds: open_clip's and transformers', wrapped; all else is named."""

from __future__ import annotations

import copy

import pytest
import torch

import adte
from adte import InputError, Preprocess
from adte.models import check_model, load_model
from adte.models.prompts import class_weights
from adte.testing.models import CHECKS, TEXTS, pixels
from adte.testing.small import SmallModel
from models.small_towers import add_small_models, make_tokenizer, needs
from models.test_huggingface import build

open_clip = needs("open_clip", "clip")
transformers = needs("transformers", "hf")


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    add_small_models(open_clip, tmp_path_factory.mktemp("configs"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ViT-B-16", "RN50", "SigLIP"])
def test_open_clip_conforms(kind, tmp_path):
    """A transformer, one with batch norm, and one with a bias and a projection of its own."""
    torch.manual_seed(0)
    net, _, transform = open_clip.create_model_and_transforms(
        f"small-{kind}", pretrained_image=False
    )
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
    if kind == "SigLIP":
        folder, load = str(make_tokenizer(tmp_path)), open_clip.tokenizer.HFTokenizer
        tokenizer = load(folder, context_length=16, clean="canonicalize")
    model = adte.wrap(net, tokenizer, transform)
    assert model.logit_bias == (-10.0 if kind == "SigLIP" else 0.0)
    for check in CHECKS:
        check(model)


def test_it_is_what_load_model_makes_of_the_same_weights(tmp_path):
    net, _, transform = open_clip.create_model_and_transforms("small-ViT-B-16")
    torch.save(net.state_dict(), tmp_path / "w.pt")
    loaded = load_model("small-ViT-B-16", weights=tmp_path / "w.pt", dtype="float32")
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
    for given in (None, transform, loaded.preprocess):
        model = adte.wrap(net, tokenizer, given)
        assert model.preprocess == loaded.preprocess
    assert (model.dim, model.logit_scale) == (loaded.dim, pytest.approx(loaded.logit_scale))
    assert model.fingerprint == loaded.fingerprint
    assert model.name == "wrapped:CLIP"
    assert adte.wrap(net, tokenizer, name="ViT-B-16/mine").name == "ViT-B-16/mine"
    x = pixels(loaded)
    with torch.no_grad():
        assert torch.equal(model.encode_image(x), loaded.encode_image(x))
        assert torch.equal(model.encode_text(TEXTS), loaded.encode_text(TEXTS))


def test_the_held_model_stays_as_it_is_and_shares_its_weights():
    net, _, _ = open_clip.create_model_and_transforms("small-RN50")
    before = copy.deepcopy(net.state_dict())
    assert net.training
    model = adte.wrap(net, open_clip.get_tokenizer("RN50"))
    assert net.training
    assert not any(m.training for m in model.modules())
    assert not net.token_embedding._forward_hooks
    theirs, ours = net.visual.conv1.weight, model.net.visual.conv1.weight
    assert theirs.data_ptr() == ours.data_ptr()
    with torch.no_grad():
        model.encode_image(torch.randn(2, 3, 64, 64))  # no batch statistics are learned
    model.to(torch.float64)
    assert net.visual.conv1.weight.dtype == torch.float32
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_hugging_face(kind, tmp_path):
    net = build(kind, tmp_path).train()
    loaded = load_model(f"hf:{tmp_path}", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    images = {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor",
              "siglip2": "Siglip2ImageProcessor"}[kind]  # fmt: skip
    images = getattr(transformers, images).from_pretrained(tmp_path)

    class Processor:  # what AutoProcessor returns has these two
        def __init__(self):
            self.tokenizer, self.image_processor = tokenizer, images

    x = pixels(loaded)
    for options in (
        {"processor": Processor()},
        {"tokenizer": tokenizer, "preprocess": images},
        {"tokenizer": tokenizer, "preprocess": loaded.preprocess},
    ):
        model = adte.wrap(net, **options)
        assert model.preprocess == loaded.preprocess
        assert model.fingerprint == loaded.fingerprint
        assert model.offers == loaded.offers
        with torch.no_grad():
            assert torch.equal(model.encode_image(x), loaded.encode_image(x))
            assert torch.equal(model.encode_text(TEXTS), loaded.encode_text(TEXTS))
    assert net.training
    with pytest.raises(InputError, match=r"does not know its tokenizer; pass .*processor="):
        adte.wrap(net)
    with pytest.raises(InputError, match=r"transformers's \w+ is .*wrap\(model, processor=…\)"):
        check_model(net)


def test_bad_wraps_of_hugging_face(tmp_path):
    net = build("clip", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    side = net.config.vision_config.image_size
    with torch.device("meta"):
        empty = type(net)(net.config)
    for given, message in (
        ((net, tokenizer, lambda x: x), "the preprocessing function cannot be read; pass an image"),
        ((net, tokenizer, Preprocess(size=side + 8)), "the preprocessing does not go with the mod"),
        ((net, lambda texts: texts), "the tokenizer does not go with the model .*; pass processor"),
        ((empty, tokenizer), "CLIPModel has no weights yet; load them, or run it once, first"),
    ):
        with pytest.raises(InputError, match=message) as error:
            adte.wrap(*given)
        assert "\n" not in str(error.value)


def test_bad_wraps():
    net, train, _ = open_clip.create_model_and_transforms("small-ViT-B-16")
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
    for given, message in (
        ((net,), r"does not know its tokenizer; pass adte.wrap\(model, tokenizer="),
        ((net, tokenizer, train), "Compose cannot be read; pass the last"),
        ((net, tokenizer, 3), "int cannot be read"),
        ((net, lambda texts: torch.full((len(texts), 77), 10**6)), "tokenizer does not go with"),
        ((net, tokenizer, Preprocess(size=48)), "the preprocessing does not go with the model"),
        ((torch.nn.Linear(2, 2), tokenizer), "torch's Linear cannot be wrapped"),
        (("ViT-B-16/openai", tokenizer), "str cannot be wrapped"),
    ):
        with pytest.raises(InputError, match=message) as error:
            adte.wrap(*given)
        assert "\n" not in str(error.value)
    ready = SmallModel()
    assert adte.wrap(ready) is ready


def test_a_raw_model_in_the_place_of_a_model_is_recognised():
    held = open_clip.create_model_and_transforms("small-ViT-B-16")
    for thing, message in (
        (held[0], r"open_clip's CLIP is .* give adte.wrap\(model, tokenizer=…\)"),
        (held, r"holds a model of open_clip; give adte.wrap\(model, tokenizer=…\)"),
        (torch.nn.Linear(2, 2), "torch's Linear is no model; give a name"),
        (None, "NoneType is no model"),
    ):
        for use in (check_model, lambda m: class_weights(m, ["cat"]), load_model):
            with pytest.raises(InputError, match=message):
                use(thing)
    model = SmallModel()
    assert check_model(model) is model
    del model.name, model.dim
    with pytest.raises(InputError, match="SmallModel does not say its name and dim; give it what"):
        check_model(model)


def test_a_transform_that_cuts_from_a_larger_square():
    net, _, own = open_clip.create_model_and_transforms("small-ViT-B-16")
    tokenizer, steps = open_clip.get_tokenizer("ViT-B-16"), own.transforms
    kind, resize, cut = type(own), type(steps[0]), type(steps[1])
    how, side = steps[0].interpolation, net.visual.image_size[0]
    for first, then, want in (
        (resize(2 * side, how), cut(side), ("shortest", 0.5)),
        (resize((2 * side, 2 * side), how), cut(side), ("squash", 0.5)),
        (resize((side, side), how), None, ("squash", 1.0)),
        (resize(side, how), None, "cannot be done here; cut a square"),
        (resize(side // 2, how), cut(side), "cannot be done here; cut a square"),
        (resize(2 * side, how), cut(2 * side), "the model takes"),
    ):
        given = kind([first, *filter(None, [then]), *steps[2:]])
        if isinstance(want, str):
            with pytest.raises(InputError, match=want):
                adte.wrap(net, tokenizer, given)
        else:
            p = adte.wrap(net, tokenizer, given).preprocess
            assert (p.size, p.resize, p.crop) == (side, *want)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"preprocess": len}, r"preprocess=<built-in.*adte\.Preprocess"),
        ({"name": ""}, "name=''; give it a text"),
        ({"dim": "16"}, "dim='16'; give it the width"),
        ({"logit_scale": "e"}, "logit_scale='e'; give it the factor"),
        ({"logit_scale": torch.nan}, "logit_scale=nan"),
        ({"logit_scale": "7"}, "logit_scale='7'; give it the factor"),
        ({"logit_scale": 0.0}, "logit_scale=0.0"),
        ({"logit_scale": torch.tensor(-2.0)}, r"logit_scale=tensor\(-2.\)"),
    ],
)
def test_what_a_model_of_ones_own_says_is_checked(facts, said):
    model = SmallModel()
    vars(model).update(facts)
    for use in (lambda: adte.Classifier(model, ["cat", "dog"]), lambda: adte.Pipeline(model)):
        with pytest.raises(InputError, match=f"adte's SmallModel has {said}"):
            use()

    class Bare(SmallModel):
        def __init__(self):
            pass

    with pytest.raises(InputError, match="Bare is not set up; call super"):
        adte.Classifier(Bare(), ["cat", "dog"])


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda x: x.numpy(), "ndarray"),
        (lambda x: (x,), "tuple"),
        (lambda x: x[:, :4], r"\(2, 4\)"),
        (lambda x: x[:1], r"\(1, 16\)"),
        (lambda x: x[:, None], r"\(2, 1, 16\)"),
    ],
    ids=["array", "tuple", "narrow", "few", "deep"],
)
def test_what_a_tower_of_ones_own_gives_is_checked(change, got):
    image = torch.randint(256, (3, 30, 30), dtype=torch.uint8)
    for verb in ("encode_text", "encode_image"):
        model = SmallModel()
        clf, encode = adte.Classifier(model, ["cat", "dog"], views=2), getattr(model, verb)
        setattr(model, verb, lambda x, encode=encode: change(encode(x)))
        said = f"{verb} of model 'small' gave {got} for 2 inputs; it ret"
        with pytest.raises(InputError, match=said):
            clf.predict(image) if "image" in verb else adte.Classifier(model, ["cat", "dog"])


def test_a_pipeline_asks_for_a_model_and_views():
    with pytest.raises(InputError, match="str is no model"):
        adte.Pipeline("tiny")
    with pytest.raises(InputError, match="views=4 are no Views"):
        adte.Pipeline(SmallModel(), 4)
