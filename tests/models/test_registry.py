"""Names, places and the parts that need no optional package."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.core.errors import MissingExtra
from adte.models import (
    _weights,
    list_models,
    load_model,
    loading,
    register_model,
    register_models,
    registry,
)
from adte.models._torchvision import import_late, import_torchvision
from adte.testing.models import CHECKS
from adte.testing.small import SmallModel


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_tiny_conforms(check):
    check(load_model("tiny"))


def test_listing():
    assert list_models("tiny") == list_models("TI?Y") == ["tiny"]
    assert "tiny" in list_models()
    assert "tiny" not in list_models("ViT*")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jax:clip", {}, r"unknown kind of model 'jax:'.*hf:, timm:"),
        ("tiny", {"weights": "random"}, "or choose a model that takes them, such as 'ViT-B-32'"),
        ("X/random", {}, r"load_model\('X', weights='random'\), or --model X --weights"),
        *(("tiny", {"dtype": d}, "is not a float type") for d in ("int8", "float33", torch.int64)),
        (3, {}, "int is no model; give a name"),
        (SmallModel(), {}, "'small' is a model already; use it as it is"),
        ("wrapped:CLIP", {}, "was handed over with adte.wrap.*pass the model itself"),
        *((n, {}, f"unknown model '{n}'; did you mean 'tiny")
          for n in ("tinyy", "Tiny", "tiny-long-tail")),
    ],
)  # fmt: skip
def test_bad_names(name, options, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)  # its import takes seconds
    with pytest.raises(InputError, match=message):
        load_model(name, **options)


@pytest.fixture
def fresh(monkeypatch):
    """Registries that a test may add to."""
    for names in (registry.NAMES, registry.KINDS):
        monkeypatch.setattr(names, "_things", dict(names._things))


def test_names_and_kinds_by_decorator(fresh, tmp_path):
    @register_model("mine")
    def load_mine():
        return SmallModel("mine")

    @register_model("heavy", dtype=torch.float64)
    def load_heavy(weights=None):
        return SmallModel(f"heavy {weights}")

    @register_models("ours:")
    def load_ours(rest, weights, tokenizer):
        return SmallModel(f"{rest} {weights} {tokenizer}")

    assert load_model("mine", dtype="float32").name == "mine"
    assert load_model("heavy").dtype == torch.float64
    assert load_model("heavy").name == "heavy"  # a state of it can be loaded
    assert load_model("heavy", dtype="float32").dtype == torch.float32
    assert load_model("heavy", weights="w").name == "heavy w"
    assert load_model("ours:a/b:c", weights="w", tokenizer="t").name == "a/b:c w t"
    assert load_model("ours:a/b:c").name == "ours:a/b:c"
    assert list_models("*E*")[:3] == ["lite", "mine", "heavy"]
    assert "mine" in list_models()
    for name, options, message in (
        ("mine", {"weights": "w"}, "'mine' has its weights and tokenizer embedded"),
        ("heavy", {"tokenizer": "t"}, "embedded; pass neither"),
        ("theirs:x", {}, "unknown kind of model 'theirs:'.*hf:, ours:, timm:"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(name, **options)

    class Fixed(SmallModel):
        def __setattr__(self, key, value):
            if key == "name" and "name" in self.__dict__:
                raise AttributeError("it is fixed")
            super().__setattr__(key, value)

    register_model("fixed")(lambda: Fixed("another"))
    with pytest.raises(InputError, match="'fixed' says that its name is 'another', which cannot"):
        load_model("fixed")
    register_model("bare")(lambda: torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="torch's Linear is no model"):
        load_model("bare")
    with pytest.raises(InputError, match="'mine' is registered already"):
        register_model("mine")(load_heavy)
    with pytest.raises(InputError, match="'mine' of models does not end in ':'"):
        register_models("mine")
    for bare in (register_model, register_models):
        with pytest.raises(InputError, match=r"load_mine.* is no name to register by; write @"):
            bare(load_mine)


def test_without_open_clip(monkeypatch):
    """A wrong name is told from a name whose package is missing."""
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"unknown model 'tyni'; take 'lite'.*adte\[clip\]"):
        load_model("tyni")
    with pytest.raises(MissingExtra, match=r"open_clip_torch.*adte\[clip\]"):
        load_model("ViT-B-16/openai")
    with pytest.raises(MissingExtra):
        load_model("ViT-B-16", weights="random")
    assert sorted(list_models()) == ["lite", "tiny", "tiny-longtail"]


def test_a_pattern_that_matches_nothing_says_so(monkeypatch):
    def said(pattern):
        result = CliRunner().invoke(main, ["models", pattern])
        assert result.exit_code == 2
        return result.stderr

    assert "no model matches 'hf:*'; names with hf: and timm: are not listed" in said("hf:*")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    want = "error: no model matches 'ViT-B-16*'; those of open_clip"
    assert said("ViT-B-16*").startswith(want)
    assert "pip install 'adte[clip]'" in said("ViT-B-16*")


@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True, "avx2": True}, torch.bfloat16),
        ({"bf16": True, "neon": True}, torch.bfloat16),
        ({"avx2": True, "avx512_bf16": False, "sve_max_length": 256}, torch.float32),
    ],
)
def test_dtype_follows_the_processor_unless_the_environment_decides(monkeypatch, features, dtype):
    cpu = torch.device("cpu")
    monkeypatch.delenv("ADTE_DTYPE", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert loading.default_dtype(cpu) == dtype
    for name in ("float32", "bfloat16"):
        monkeypatch.setenv("ADTE_DTYPE", name)
        assert loading.default_dtype(cpu) == getattr(torch, name)
        assert load_model("tiny").dtype == torch.float32  # its own, whatever the processor
    assert load_model("tiny", dtype="float64", device="cpu").dtype == torch.float64
    monkeypatch.setenv("ADTE_DTYPE", "int8")
    with pytest.raises(InputError, match=r"ADTE_DTYPE='int8' is no dtype .*float32 or bfloat16"):
        loading.default_dtype(cpu)


def test_processor_without_the_query_or_the_kernels(monkeypatch):
    monkeypatch.delenv("ADTE_DTYPE", raising=False)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert isinstance(loading._cpu_features(), set)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert loading.default_dtype(torch.device("cpu")) == torch.float32
    assert loading.default_dtype(torch.device("meta")) == torch.float32


def test_missing_packages_name_the_extra():
    with pytest.raises(MissingExtra, match=r"needs no_such.*pip install 'adte\[clip\]'"):
        import_late("no_such_module_here", "no_such", "clip", "this")


@pytest.mark.slow
def test_torchvision_imports_and_again(tmp_path):
    """In a fresh process, since a failed import leaves traces."""
    pytest.importorskip("importlib.util").find_spec("torchvision") or pytest.skip("no torchvision")
    code = (
        "from adte.models._torchvision import import_torchvision as go\n"
        "v = go()\nassert go() is v\nimport torchvision.transforms\nimport torchvision.ops\n"
        "print(v.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == import_torchvision().__version__


def test_the_cache_comes_before_the_hub_which_may_be_out_of_reach(monkeypatch):
    constants = SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT="http://[::1]:9")
    hub = SimpleNamespace(constants=constants, try_to_load_from_cache=lambda repo, name: None)
    monkeypatch.setattr(_weights, "import_hub", lambda: hub)
    assert _weights.hub_reachable() is False
    assert _weights.fetch("a/b", ["c"]) is None
    constants.HF_HUB_OFFLINE = True
    assert _weights.hub_reachable("http://[::1]:9") is False
    hub.try_to_load_from_cache = lambda repo, name: f"/{repo}/{name}"
    assert _weights.fetch("a/b", ["c", "d"]) == "/a/b/c"


def test_checkpoints_of_many_forms(tmp_path):
    state = {"a": torch.ones(2), "b": torch.zeros(3)}
    ways = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
    wrapped = [{f"{way}{k}": v for k, v in state.items()} for way in ways]
    for form in (state, {"state_dict": state}, {"model": state}, *wrapped):
        torch.save(form, tmp_path / "w.pt")
        assert _weights.read_checkpoint(tmp_path / "w.pt").keys() == state.keys()
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(InputError, match="holds no named tensors"):
        _weights.read_checkpoint(tmp_path / "w.pt")
