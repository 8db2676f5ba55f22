"""The fast forward against the library's own, on small towers of every family that it knows."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adte import InputError, Views
from adte.data import Dataset, make_stream
from adte.evaluate.features.live import Live
from adte.methods import create_method
from adte.models import accelerate, load_model
from adte.models.fast import layer_norm, quick_gelu
from adte.models.loading import default_dtype
from adte.testing.models import TEXTS, pixels
from models.small_towers import OPEN_CLIP, TEXT, add_small_models, make_tokenizer, needs
from models.test_huggingface import build

open_clip = needs("open_clip", "clip")
needs("transformers", "hf")

_VIT = {"image_size": 64, "layers": 3, "width": 64, "head_width": 32, "patch_size": 16}
KNOWN = {
    "plain": {"vision_cfg": _VIT},
    "quick": {"vision_cfg": {**_VIT, "patch_size": 32}, "quick_gelu": True},
    "mean": {"vision_cfg": {**_VIT, "pool_type": "avg", "final_ln_after_pool": True}},
    "mean-of-normed": {"vision_cfg": {**_VIT, "pool_type": "avg", "no_ln_pre": True}},
    "one-block": {"vision_cfg": {**_VIT, "layers": 1}},
}


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    configs = tmp_path_factory.mktemp("configs")
    for name, config in KNOWN.items():
        OPEN_CLIP[f"fast-{name}"] = {"embed_dim": 32, "text_cfg": TEXT, **config}
    add_small_models(open_clip, configs)
    for name in KNOWN:
        del OPEN_CLIP[f"fast-{name}"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """A model by the name of its family, its weights stirred so that every part counts."""
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    made = {}

    def make(name):
        if name not in made:
            torch.manual_seed(0)
            kind, _, rest = name.partition(":")
            if kind == "hf":
                folder = tmp_path_factory.mktemp(rest)
                build(rest, folder)
                model = load_model(f"hf:{folder}", device="cpu", dtype="float32", runtime="torch")
            else:
                folder = tokenizer if "SigLIP" in name else None
                model = load_model(f"small-{name}", weights="random", tokenizer=folder,
                                   device="cpu", dtype="float32", runtime="torch")  # fmt: skip
            with torch.no_grad():
                for p in model._visual.parameters():
                    p += 0.1 * torch.randn_like(p)  # biases and norms begin at 0 and 1
            made[name] = model
        return made[name]

    return make


FAMILIES = [*(f"fast-{name}" for name in KNOWN), "ViT-L-14", "SigLIP", "hf:clip", "hf:siglip"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("images", [1, 5])
@torch.no_grad()
def test_it_computes_what_the_library_does(model_of, name, images):
    model = model_of(name)
    fast = accelerate(model)
    x = torch.randn(images, *pixels(model).shape[1:])
    torch.testing.assert_close(fast.encode_image(x), model.encode_image(x), rtol=1e-4, atol=1e-5)
    half, small = copy.deepcopy(model).bfloat16(), x.bfloat16()
    if default_dtype(torch.device("cpu")) == torch.bfloat16:  # else it takes minutes
        out = accelerate(half).encode_image(small)
        assert F.cosine_similarity(half.encode_image(small), out).min() >= 0.9995
    raw = fast.runner(fast._visual, x)
    assert raw.shape == (images, model.dim)
    assert not torch.equal(raw, fast.encode_image(x))  # that is of unit length


def test_the_model_stays_what_it_was(model_of):
    model = model_of("fast-quick")
    fast = accelerate(model)
    assert model.runner is None
    assert (fast.name, fast.dim, fast.preprocess) == (model.name, model.dim, model.preprocess)
    assert fast.fingerprint == model.fingerprint
    assert fast.offers == model.offers
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(fast.encode_text(TEXTS), model.encode_text(TEXTS))
    ours = {p.data_ptr() for p in fast.parameters()}
    assert ours == {p.data_ptr() for p in model.parameters()}


def test_with_gradients_the_library_runs(model_of):
    model = model_of("fast-plain")
    fast, x = accelerate(model), pixels(model).requires_grad_()
    assert fast.runner(fast._visual, x) is None
    assert torch.equal(fast.encode_image(x), model.encode_image(x))
    (g,) = torch.autograd.grad(fast.encode_image(x)[0, 0], x)
    assert g.abs().sum() > 0


@torch.no_grad()
def test_it_follows_the_weights(model_of):
    """Moved, cast or changed in place, swapped for a call, copied, pickled: never stale."""
    model = copy.deepcopy(model_of("hf:clip"))
    fast, x = accelerate(model), pixels(model)
    before = fast.encode_image(x)
    for p in model.net.vision_model.parameters():
        p.mul_(1.1)
    after = fast.encode_image(x)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, model.encode_image(x), rtol=1e-4, atol=1e-5)
    copied = copy.deepcopy(fast)
    assert copied.runner.tower is copied.net
    thawed = pickle.loads(pickle.dumps(fast.runner))
    assert torch.equal(thawed(thawed.tower, x), fast.runner(fast._visual, x))
    fast.double()
    torch.testing.assert_close(fast.encode_image(x.double()).float(), after, rtol=1e-4, atol=1e-5)
    name = "net.vision_model.post_layernorm.bias"
    other = {name: dict(fast.named_parameters())[name] + 1}
    swapped = torch.func.functional_call(_Image(fast), {f"model.{name}": other[name]}, (x,))
    own = torch.func.functional_call(_Image(model), {f"model.{name}": other[name]}, (x,))
    torch.testing.assert_close(swapped, own, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(swapped.float(), after, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", ["fast-plain", "hf:clip"])
def test_it_follows_a_module_that_is_put_in(model_of, name):
    model = copy.deepcopy(model_of(name))
    fast, x = accelerate(model), pixels(model)
    before = fast.encode_image(x)
    tower = model._visual
    blocks = tower.vision_model.encoder.layers if "hf" in name else tower.transformer.resblocks
    blocks[0] = copy.deepcopy(blocks[0])
    for p in blocks[0].parameters():
        p.mul_(1.5).add_(0.1)
    after = fast.encode_image(x)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, model.encode_image(x), rtol=1e-4, atol=1e-5)
    blocks[0] = _Double()  # not known: the library's own forward
    assert torch.equal(fast.encode_image(x), model.encode_image(x))


class _Double(torch.nn.Module):
    def forward(self, x, *args, **options):
        return 2 * x


class _Image(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.encode_image(x)


@pytest.mark.parametrize("method", ["tent", "memo"])
def test_methods_that_change_the_tower(model_of, method):
    from adte.core.batch import Context

    model = model_of("fast-plain")
    text = model.encode_text(["cat", "dog", "car"]).detach()
    answers = []
    for net in (model, accelerate(model)):
        with torch.no_grad():
            x = torch.randn(1, 4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
            features = net.encode_image(x[0])[None]
        batch = Context(text, net.logit_scale, net, ["cat", "dog", "car"]).batch(features, x)
        answers.append(create_method(method).step(batch).probs)
    torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("RN50", "its kind is open_clip.ModifiedResNet"),
        ("CoCa", "pools by attention"),
        ("EVA02", "its trunk is a Eva"),
        ("hf:siglip2", "its kind is transformers.Siglip2Model"),
    ],
)
def test_other_towers_are_refused_with_the_reason(model_of, name, reason):
    with pytest.raises(InputError, match=f"no faster forward here: .*{reason}.*; use it as it is"):
        accelerate(model_of(name))


def test_hooks_and_strangers_are_refused(model_of):
    model = copy.deepcopy(model_of("fast-plain"))
    model.net.visual.ln_post.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="it has hooks"):
        accelerate(model)
    with pytest.raises(InputError, match="'tiny' has no tower that a faster forward is known for"):
        accelerate(load_model("tiny"))


def test_a_library_that_computes_otherwise_is_noticed(model_of, monkeypatch):
    model = copy.deepcopy(model_of("fast-plain"))
    own = type(model.net.visual).forward
    kind = type(
        "VisionTransformer", (type(model.net.visual),), {"forward": lambda s, x: -own(s, x)}
    )
    kind.__module__ = "open_clip.transformer"
    model.net.visual.__class__ = kind
    with pytest.raises(InputError, match=r"differs from the library's .cosine -1"):
        accelerate(model)


@torch.no_grad()
def test_other_sizes_go_to_the_library(model_of):
    fast = accelerate(model_of("fast-plain"))
    tower, x = fast._visual, torch.zeros(1, 3, 64, 64)
    assert fast.runner(tower, x) is not None
    for shape in ((1, 3, 96, 96), (1, 3, 64, 48), (1, 3, 70, 70)):
        assert fast.runner(tower, torch.zeros(shape)) is None
    assert fast.runner(tower, x.double()) is None
    assert fast.runner(copy.deepcopy(tower), x) is None


# ------------------------------------------------------------------ runtimes by name


def load(runtime, name="small-ViT-B-16", **options):
    given = {"weights": "random", "device": "cpu", "dtype": "float32"} | options
    return load_model(name, runtime=runtime, **given)


def test_runtimes_by_name(monkeypatch):
    def runner(name, **options):
        return getattr(load(name, **options).runner, "name", None)

    assert (runner("auto"), runner("torch"), runner("fast")) == (None, None, "fast")
    with pytest.raises(InputError, match="use it as it is, with runtime='torch'"):
        load("fast", name="tiny", weights=None)
    with pytest.raises(InputError, match=r"unknown runtime 'quick'.*auto, fast, torch"):
        load("quick")
    monkeypatch.setenv("ADTE_RUNTIME", "fast")  # what auto is
    assert (runner("auto"), runner("torch")) == ("fast", None)
    names, image = ("cat", "dog"), np.zeros((8, 8, 3), np.uint8)
    data = Dataset("x", names, names, [image], np.zeros(1, np.int64), ["0"])
    live = Live(load("auto"), torch.eye(2, 32), make_stream(data), Views(2))
    assert live.recipe.runtime == "fast"
    monkeypatch.setenv("ADTE_RUNTIME", "quick")
    with pytest.raises(InputError, match=r"ADTE_RUNTIME.*'quick'"):
        load("auto")


# ------------------------------------------------------------------ on CUDA

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_on_cuda(model_of, name):
    wide = copy.deepcopy(model_of(name)).to("cpu", torch.float32)
    model = copy.deepcopy(wide).to("cuda", torch.bfloat16)
    fast, x = accelerate(model), torch.randn(32, *pixels(wide).shape[1:])
    out = fast.encode_image(x.to("cuda", torch.bfloat16))
    own = model.encode_image(x.to("cuda", torch.bfloat16))
    assert F.cosine_similarity(out, own).min() >= 0.9995
    assert F.cosine_similarity(out.cpu(), wide.encode_image(x)).min() >= 0.999
    if name == "fast-quick":  # float32; the library's convolutions may round to TF32 elsewhere
        full, x = copy.deepcopy(wide).cuda(), x.cuda()
        out = accelerate(full).encode_image(x)
        torch.testing.assert_close(out, full.encode_image(x), rtol=1e-3, atol=1e-4)


@cuda
@torch.no_grad()
@pytest.mark.parametrize("width", [64, 768, 1000, 3072])
def test_kernels_on_cuda(width):
    x = 3 * torch.randn(50, width, device="cuda", dtype=torch.bfloat16)
    weight, bias, shift = torch.randn(3, width, device="cuda", dtype=torch.bfloat16)
    out = layer_norm(x, shift.float(), weight, bias, 1e-5)
    want = F.layer_norm(x.float() + shift.float(), (width,), weight.float(), bias.float(), 1e-5)
    torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=2e-2)
    plain = quick_gelu(x.float().cpu()).cuda()
    torch.testing.assert_close(quick_gelu(x.clone()).float(), plain, rtol=1e-2, atol=1e-2)


@cuda
def test_auto_on_cuda_is_fast():
    model = load_model("small-fast-quick", weights="random", device="cuda")
    assert model.runner.name == "fast"
    assert load_model("small-RN50", weights="random", device="cuda").runner is None
    assert load_model("tiny", device="cuda").runner is None


KERNELS = """
import torch
from adte.models import _triton, fast
torch.manual_seed(0)
x, shift = 3 * torch.randn(5, 96) + 1, torch.randn(96)
weight, bias = torch.randn(2, 96)
for given in (None, shift):
    out = torch.empty_like(x)
    _triton.norm(x, given, weight, bias, 1e-5, out)
    torch.testing.assert_close(out, fast.layer_norm(x, given, weight, bias, 1e-5))
out = torch.empty_like(x)
_triton.quick_gelu(x, out)
torch.testing.assert_close(out, fast.quick_gelu(x))
print("kernels agree")
"""


@pytest.mark.slow
def test_the_kernels_compute_what_plain_torch_does():
    """Without a GPU, by Triton's own interpreter."""
    if find_spec("triton") is None:
        pytest.skip("needs triton")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, env=env)
    assert "kernels agree" in done.stdout, done.stderr
