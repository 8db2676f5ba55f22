"""open_clip's architectures with random weights, offline, against open_clip's own forward.

The families run as small versions. The full ones are built without memory.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import threading

import pytest
import torch

from adte import InputError
from adte.core.loading import EMBEDDED
from adte.models import list_models, load_model, openclip
from adte.models._towers import swapped
from adte.models.get import checkpoint_of, get_model
from adte.testing.models import CHECKS, TEXTS, pixels
from models.small_towers import OPEN_CLIP, add_small_models, make_tokenizer, needs

open_clip = needs("open_clip", "clip")
needs("transformers", "hf")

FULL = ["RN50", "ViT-B-16", "ViT-L-14", "EVA02-B-16", "EVA02-L-14", "ViT-B-16-SigLIP",
        "ViT-B-16-SigLIP2", "MobileCLIP2-S0", "MobileCLIP2-B", "convnext_base"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    add_small_models(open_clip, tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module", params=OPEN_CLIP)
def model(request, tokenizer):
    torch.manual_seed(0)
    folder = tokenizer if "SigLIP" in request.param else None
    name = f"small-{request.param}"
    return load_model(name, weights="random", tokenizer=folder, dtype="float32")


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """No hub and an empty cache, as on a machine without a network."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_conformance(model, check):
    check(model)


def test_agrees_with_open_clip(model):
    x = pixels(model)
    ids = model.tokenizer(TEXTS)
    with torch.no_grad():
        if "CoCa" in model.name:  # its forward goes on to write captions
            image = model.net.encode_image(x, normalize=True)
            text = model.net.encode_text(ids, normalize=True)
        else:
            image, text = model.net(x, ids)[:2]
        torch.testing.assert_close(model.encode_image(x), image, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.encode_text(TEXTS), text, rtol=0, atol=1e-5)
    assert model.logit_scale == pytest.approx(model.net.logit_scale.exp().item())
    assert model.logit_bias == (-10.0 if "SigLIP" in model.name else 0.0)


def test_a_copy_and_another_thread_keep_their_own_tokens(model):
    """Embeddings swapped in here are not seen by a deep copy's or another thread's call."""
    ids, x = model.token_embeddings(TEXTS)
    other, seen = copy.deepcopy(model), []
    layer = model._layer

    def look():
        seen.append(layer(ids))

    with torch.no_grad(), swapped(x + 1):
        torch.testing.assert_close(layer(ids), x + 1)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    torch.testing.assert_close(seen[0], x)
    torch.testing.assert_close(other.token_embeddings(TEXTS)[1], x)


@pytest.mark.parametrize("name", FULL)
def test_full_architectures_build(name):
    """Shapes only: on the meta device, which holds no numbers."""
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        net = openclip._build(name, False, open_clip)
    assert sum(p.numel() for p in net.parameters()) > 5e7
    preprocess = openclip.read_preprocess(net, openclip._common(
        name, open_clip.list_pretrained_tags_by_model(name), open_clip))  # fmt: skip
    assert preprocess.size == config["vision_cfg"].get("image_size", 224)
    assert preprocess.resize == ("squash" if "SigLIP" in name else "shortest")


@pytest.mark.parametrize(
    ("name", "size", "mean", "interpolation", "resize"),
    [
        ("ViT-B-16/openai", 224, 0.48145466, "bicubic", "shortest"),
        ("ViT-L-14-336/openai", 336, 0.48145466, "bicubic", "shortest"),
        ("ViT-B-16-SigLIP2/webli", 224, 0.5, "bicubic", "squash"),
        ("MobileCLIP2-S0/dfndr2b", 256, 0.0, "bilinear", "shortest"),
    ],
)
def test_preprocessing_is_the_tags_own(name, size, mean, interpolation, resize):
    arch, _, tag = name.partition("/")
    with torch.device("meta"):
        net = openclip._build(arch, False, open_clip)
    p = openclip.read_preprocess(net, open_clip.pretrained.get_pretrained_cfg(arch, tag))
    assert (p.size, p.mean[0], p.interpolation, p.resize) == (size, mean, interpolation, resize)


def gelu(model):
    return type(model.net.transformer.resblocks[0].mlp.gelu).__name__


def test_quick_gelu_where_the_tag_or_the_architecture_says_so(monkeypatch):
    tags = open_clip.pretrained._PRETRAINED
    config = OPEN_CLIP["ViT-B-16"]
    monkeypatch.setitem(tags, "small-ViT-B-16", {"openai": {"quick_gelu": True}, "plain": {}})
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "small-quickgelu",
                        {**config, "quick_gelu": True})  # fmt: skip
    assert gelu(load_model("small-ViT-B-16/openai", weights="random")) == "QuickGELU"
    assert gelu(load_model("small-ViT-B-16/plain", weights="random")) == "GELU"
    assert gelu(load_model("small-ViT-B-16", weights="random")) == "GELU"
    assert gelu(load_model("small-quickgelu", weights="random")) == "QuickGELU"


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_from_a_file(tmp_path, suffix):
    torch.manual_seed(1)
    model = load_model("small-ViT-B-16", weights="random", dtype="float32")
    file = tmp_path / f"weights{suffix}"
    state = model.net.state_dict()
    if suffix == ".pt":  # as open_clip's own trainer saves, from a data-parallel wrapper
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, file)
    else:
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in state.items()}, file)
    again = load_model("small-ViT-B-16", weights=file, dtype="float32")
    assert again.fingerprint == model.fingerprint
    with torch.no_grad():
        torch.testing.assert_close(again.encode_text(TEXTS), model.encode_text(TEXTS))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_openais_own_archives_are_read_and_use_quick_gelu(tmp_path):
    """OpenAI's files are TorchScript archives in float16 with three sizes added."""
    model = load_model("small-ViT-B-16", weights="random", dtype="float32")

    class Holder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    holder = Holder()
    state = {k: v.half() for k, v in model.net.state_dict().items()}
    state |= {k: torch.tensor(7) for k in ("input_resolution", "context_length", "vocab_size")}
    for key, value in state.items():
        *path, leaf = key.split(".")
        at = holder
        for step in path:
            if not hasattr(at, step):
                at.add_module(step, Holder())
            at = getattr(at, step)
        at.register_buffer(leaf, value)
    file = tmp_path / "ViT-B-16.pt"
    torch.jit.script(holder).save(str(file))
    again = load_model("small-ViT-B-16", weights=file, dtype="float32")
    assert gelu(again) == "QuickGELU"
    assert again.dtype == torch.float32
    torch.testing.assert_close(again.net.visual.proj, model.net.visual.proj, rtol=1e-3, atol=1e-4)


def test_the_old_layout_of_a_custom_text_tower_is_read(tmp_path):
    model = load_model("small-EVA02", weights="random", dtype="float32")
    state = {k.removeprefix("text."): v for k, v in model.net.state_dict().items()}
    torch.save(state, tmp_path / "old.pt")
    again = load_model("small-EVA02", weights=tmp_path / "old.pt", dtype="float32")
    with torch.no_grad():
        torch.testing.assert_close(again.encode_text(TEXTS), model.encode_text(TEXTS))


def test_checkpoints_of_another_architecture_or_of_something_else(tmp_path):
    def saved(state):
        torch.save(state, tmp_path / "other.pt")
        return tmp_path / "other.pt"

    mine = load_model("small-ViT-B-16", weights="random").net.state_dict()
    larger = mine | {"visual.positional_embedding": torch.zeros(50, 64)}  # not resized
    rn50, vit_l = (load_model(f"small-{n}", weights="random").net.state_dict()
                   for n in ("RN50", "ViT-L-14"))  # fmt: skip
    other = {"encoder.weight": torch.zeros(3)}
    absent = r"tensor '\S+' is absent in the file and has shape \(.*\) in the model"
    for name, state, message in (
        ("ViT-B-16", rn50, r"another architecture: tensor 'text_projection' has shape \(32, 64\) "
         r"in the file and has shape \(32, 32\) in the model"),
        ("ViT-B-16", vit_l, r"tensor '\S+' has shape \(\d+.*\) in the file and has shape \(\d+"),
        ("ViT-B-16", larger, r"'visual.positional_embedding' has shape \(50, 64\)"),
        *((name, other, absent) for name in ("ViT-B-16", "EVA02", "MobileCLIP2")),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            load_model(f"small-{name}", weights=saved(state))


def test_bad_names_and_files(tmp_path, unreachable):
    (tmp_path / "broken.pt").write_bytes(b"not a checkpoint")
    for name, options, message in (
        ("ViT-B-16", {}, "without weights; choose a tag, as in 'ViT-B-16/openai'"),
        ("ViT-B-16/opena", {}, "did you mean 'openai'"),
        ("ViT-B-17/openai", {}, "did you mean 'ViT-B-16/openai'.*`adte models`"),
        ("vit-b-32", {}, "did you mean 'ViT-B-32'"),
        ("VIT-l-14/OpenAI", {}, "did you mean 'ViT-L-14/openai'"),
        ("TINY", {}, "did you mean 'tiny'"),
        (str(tmp_path), {}, f"unknown model .*did you mean 'hf:{tmp_path}'"),
        ("small-ViT-B-16", {"weights": tmp_path / "none.pt"}, "does not exist"),
        ("small-ViT-B-16", {"weights": tmp_path / "broken.pt"}, "not a checkpoint or is damaged"),
        ("ViT-B-16/openai", {}, "get ViT-B-16.pt from https://.*/ViT-B-16.pt elsewhere and "
         "pass weights=FILE .--weights FILE on the "
         "command line.*`adte models get ViT-B-16/openai --from PLACE`"),
        ("ViT-B-32/laion2b_s34b_b79k", {}, "get open_clip_model.safetensors or "
         "open_clip_pytorch_model.bin of the hub repository 'laion/"),
        ("small-SigLIP", {"weights": "random"}, "tokenizer.json.*'nobody/has-this'.*tokenizer="),
        ("small-SigLIP", {"weights": "random", "tokenizer": "x"}, "folder 'x' does not exist"),
        ("small-SigLIP", {"weights": "random", "tokenizer": tmp_path}, "holds no tokenizer"),
        ("roberta-ViT-B-32", {"weights": "random"}, "'roberta-base'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message) as error:
            load_model(name, **options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ViT-B-16/openai", "ViT-B-32/laion2b_s34b_b79k"])
def test_the_file_to_bring_is_the_one_that_is_looked_for(name, unreachable, tmp_path):
    files = " or ".join(checkpoint_of(name).files)
    for ask in (lambda: load_model(name), lambda: get_model(name, str(tmp_path))):
        with pytest.raises(InputError) as error:
            ask()
        assert files in str(error.value)


def test_offline_answers_at_once(unreachable):
    import time

    start = time.perf_counter()
    with pytest.raises(InputError, match="cannot be downloaded"):
        load_model("ViT-B-32/openai")
    assert time.perf_counter() - start < 10  # and after no retries, whose pauses add up to more


def test_listing_knows_every_pair():
    names = list_models("vit-b-16*")
    assert {"ViT-B-16/openai", "ViT-B-16-SigLIP2/webli"} <= set(names)
    assert len(list_models()) == len(open_clip.list_pretrained()) + len(EMBEDDED)


def test_listing_imports_no_networks():
    code = (
        "import sys, adte; print(*adte.list_models()); assert 'torchvision' not in sys.modules; "
        "import adte.models.openclip as o; o.import_open_clip(); print(*adte.list_models())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light, whole = done.stdout.splitlines()
    assert light == whole
