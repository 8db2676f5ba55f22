"""Names, places and the parts that need no optional package."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from adte import InputError
from adte.errors import MissingExtra
from adte.models import _weights, list_models, load_model, registry
from adte.models._torchvision import import_late, import_torchvision
from checks.model_checks import CHECKS
from small_model import SmallModel


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_tiny_conforms(check):
    check(load_model("tiny"))


def test_listing():
    assert list_models("tiny") == ["tiny"]
    assert list_models("TI?Y") == ["tiny"]
    assert "tiny" in list_models()
    assert "tiny" not in list_models("ViT*")


def test_bad_names():
    with pytest.raises(InputError, match=r"unknown kind of model 'jax:'.*hf:, timm:"):
        load_model("jax:clip")
    with pytest.raises(InputError, match="embedded"):
        load_model("tiny", weights="random")
    for dtype in ("int8", "float33", torch.int64):
        with pytest.raises(InputError, match="is not a float type"):
            load_model("tiny", dtype=dtype)


def test_without_open_clip(monkeypatch):
    """A wrong name is told from a name whose package is missing."""
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"unknown model 'tyni'; take 'tiny'.*adte\[clip\]"):
        load_model("tyni")
    with pytest.raises(MissingExtra, match=r"open_clip_torch.*adte\[clip\]"):
        load_model("ViT-B-16/openai")
    with pytest.raises(MissingExtra):
        load_model("ViT-B-16", weights="random")
    assert list_models() == ["tiny"]


def test_tiny_goes_where_it_is_told():
    assert load_model("tiny").dtype == torch.float32
    assert load_model("tiny", dtype="float64", device="cpu").dtype == torch.float64


@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True, "avx2": True}, torch.bfloat16),
        ({"bf16": True, "neon": True}, torch.bfloat16),
        ({"avx2": True, "avx512_bf16": False, "sve_max_length": 256}, torch.float32),
    ],
)
def test_dtype_follows_the_processor(monkeypatch, features, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert registry.default_dtype(torch.device("cpu")) == dtype


def test_processor_without_the_query_or_the_kernels(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert isinstance(registry._cpu_features(), set)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert registry.default_dtype(torch.device("cpu")) == torch.float32
    assert registry.default_dtype(torch.device("meta")) == torch.float32


def test_missing_packages_name_the_extra():
    with pytest.raises(MissingExtra, match=r"needs no_such.*pip install 'adte\[clip\]'"):
        import_late("no_such_module_here", "no_such", "clip", "this")


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


def test_hub_out_of_reach(monkeypatch):
    hub = SimpleNamespace(
        constants=SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT="http://[::1]:9")
    )
    hub.try_to_load_from_cache = lambda repo, name: None
    monkeypatch.setattr(_weights, "_hub", lambda: hub)
    assert _weights.hub_reachable() is False
    assert _weights.fetch("a/b", ["c"]) is None
    hub.constants.HF_HUB_OFFLINE = True
    assert _weights.hub_reachable("http://[::1]:9") is False


def test_cached_files_are_taken_before_the_hub_is_asked(monkeypatch):
    hub = SimpleNamespace(try_to_load_from_cache=lambda repo, name: f"/{repo}/{name}")
    monkeypatch.setattr(_weights, "_hub", lambda: hub)
    assert _weights.fetch("a/b", ["c", "d"]) == "/a/b/c"


def test_fingerprint_sees_a_single_weight():
    a, b = SmallModel(), SmallModel()
    assert _weights.fingerprint(a) == _weights.fingerprint(b)
    with torch.no_grad():
        b.project.weight[0, 0] += 1e-3
    assert _weights.fingerprint(a) != _weights.fingerprint(b)
    assert _weights.fingerprint(a) != _weights.fingerprint(SmallModel().double())
    assert len(_weights.fingerprint(a.bfloat16())) == 32


def test_checkpoints_of_many_forms(tmp_path):
    state = {"a": torch.ones(2), "b": torch.zeros(3)}
    for form in (state, {"state_dict": state}, {"model": state}, {f"module.{k}": v
                 for k, v in state.items()}):  # fmt: skip
        torch.save(form, tmp_path / "w.pt")
        assert _weights.read_checkpoint(tmp_path / "w.pt").keys() == state.keys()
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(InputError, match="holds no named tensors"):
        _weights.read_checkpoint(tmp_path / "w.pt")


class Evil:
    def __reduce__(self):
        return (print, ("a checkpoint ran code",))


def test_a_checkpoint_cannot_run_code(tmp_path, capsys):
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="not a checkpoint or is damaged"):
        _weights.read_checkpoint(tmp_path / "evil.pt")
    assert "ran code" not in capsys.readouterr().out
