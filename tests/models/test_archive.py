"""Checkpoints are read without running them, as torch reads them, or refused in one sentence."""

from __future__ import annotations

import shutil
import struct
import sys
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import adte
from adte.core.errors import InputError
from adte.models._weights import read_checkpoint
from models.hostile import Reduced, Scripted, hostile, script, tensor_pickle, zip_of
from predicting import call, is_clean, picture


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seq = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))
        self.attn_mask = torch.ones(2, 2)  # a plain attribute, no part of the weights
        self.register_buffer("passing", torch.arange(3), persistent=False)
        self.names = ["a", "b"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seq(self.linear(x)) + self.attn_mask.sum()


class Clip(nn.Module):
    """What is special of OpenAI's files, and more: float16, shared and strided tensors, sizes."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.randn(40).half()
        self.visual = Block(4)
        self.tied = self.visual
        self.transformer = nn.ModuleDict({"resblocks": nn.Sequential(Block(4), Block(4))})
        self.proj = nn.Parameter(base[2:14].view(3, 4).t())
        self.register_buffer("view", base[1:9:2])
        self.register_buffer("row", torch.arange(4.0).expand(3, 4))
        self.register_buffer("none", None)
        self.logit_scale = nn.Parameter(torch.tensor(2.5).half())
        self.register_buffer("context_length", torch.tensor(77))
        self.register_buffer("empty", torch.zeros(0, 3, dtype=torch.bool))
        self.input_resolution = 224
        self.place = torch.device("cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.visual(x) @ self.proj.float()


@pytest.mark.parametrize("way", ["script", "trace"])
def test_the_tensors_of_torchscript_are_those_that_torch_reads(way, tmp_path):
    file = tmp_path / "ViT-B-16.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch discourages TorchScript
        model = Clip()
        made = torch.jit.script(model) if way == "script" else torch.jit.trace(
            model, torch.ones(1, 4))  # fmt: skip
        made.save(str(file))
        wanted = torch.jit.load(str(file)).state_dict()
    same_tensors(read_checkpoint(file), wanted)
    assert "visual.attn_mask" not in wanted
    assert {"tied.seq.2.bias", "transformer.resblocks.1.seq.0.weight", "view"} <= wanted.keys()


def same_tensors(got, wanted):
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        facts = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (got[name], tensor)]
        assert facts[0] == facts[1], name
        assert torch.equal(bits(got[name]), bits(tensor)), name
    starts = [[t.untyped_storage().data_ptr() for t in s.values()] for s in (got, wanted)]
    for i in range(len(wanted)):  # what is shared stays shared
        for j in range(i):
            if list(wanted.values())[i].numel() and list(wanted.values())[j].numel():
                assert (starts[0][i] == starts[0][j]) == (starts[1][i] == starts[1][j])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_save_wrote_is_read_as_torch_reads_it(zipped, tmp_path):
    file, base = tmp_path / "w.pt", torch.randn(30)
    state = Clip().state_dict()
    state["noted"] = nn.Parameter(base[3:9].view(2, 3).t())
    state["noted"].why = "kept"
    state["shared"] = base[::3]
    kinds = [torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.int16, torch.int32]
    if zipped:
        kinds += [torch.uint16, torch.float8_e4m3fn]
    state |= {str(kind): torch.ones(3).to(kind) for kind in kinds}
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))]).state_dict()
    more = {
        "epoch": 3,
        "optimizer": optimizer,
        "size": torch.Size([1]),
        "place": torch.device("cuda", 0),
    }
    torch.save({"state_dict": state, **more}, file, _use_new_zipfile_serialization=zipped)
    wanted = torch.load(file, weights_only=True)["state_dict"]
    same_tensors(read_checkpoint(file), dict(wanted))


# --------------------------------------------------------------------------- code


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "written"


def test_these_archives_do_write_when_torch_runs_them(tmp_path, mark):
    file = script(Scripted(str(mark)), tmp_path / "evil.pt")
    assert not mark.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(str(file))
    assert mark.exists()
    mark.unlink()
    torch.save(Reduced(mark), tmp_path / "evil.bin")
    torch.load(tmp_path / "evil.bin", weights_only=False)
    assert mark.exists()


def test_a_checkpoint_runs_no_code(tmp_path, mark):
    files = hostile(tmp_path, mark)
    for file in files:
        with pytest.raises(InputError) as error:
            read_checkpoint(file)
        assert "\n" not in str(error.value)
        assert repr(str(file)) in str(error.value)
        assert not mark.exists(), file
    with pytest.raises(InputError, match="restores itself by code of its own, which is not run"):
        read_checkpoint(files[0])
    with pytest.raises(
        InputError, match=r"more than tensors \(\w+.mkdir\).*save its tensors alone"
    ):
        read_checkpoint(files[1])


def test_a_module_within_may_not_run_code_either(tmp_path, mark):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scripted(str(mark))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    file = script(Outer(), tmp_path / "outer.pt")
    with pytest.raises(InputError, match="restores itself by code of its own"):
        read_checkpoint(file)
    assert not mark.exists()


def test_attributes_of_what_a_pickle_may_name_cannot_be_set(tmp_path):
    for one in (b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n",
                b"ctorch\nfloat32\n", b"ctorch\nSize\n"):  # fmt: skip
        state = b"N}X\x0c\x00\x00\x00__defaults__)s\x86"
        file = zip_of(tmp_path / "w.pt", {"data.pkl": b"\x80\x02" + one + state + b"b."})
        with pytest.raises(InputError, match="sets attributes of what has none"):
            read_checkpoint(file)


# --------------------------------------------------------------------------- damage

HUGE = 1 << 40
FLOATS = struct.pack("<6f", *range(6))
DAMAGED = {
    "storage of another size": (tensor_pickle(count=7), "has 24 bytes, not 28"),
    "storage of huge size": (tensor_pickle(count=HUGE), "has 24 bytes, not"),
    "storage of negative size": (tensor_pickle(count=-1), "has 24 bytes, not -4"),
    "size beyond": (tensor_pickle(size=(3, 3)), "reaches beyond its data"),
    "stride beyond": (tensor_pickle(stride=(4, 1)), "reaches beyond its data"),
    "offset beyond": (tensor_pickle(offset=1), "reaches beyond its data"),
    "negative stride": (tensor_pickle(stride=(-3, 1)), "has the shape"),
    "negative size": (tensor_pickle(size=(-2, 3)), "has the shape"),
    "negative offset": (tensor_pickle(offset=-1), "has the shape"),
    "no number": (tensor_pickle(offset="x"), "has the shape"),
    "lengths differ": (tensor_pickle(stride=(3,)), "has the shape"),
    "huge by a stride of zero": (tensor_pickle(size=(HUGE,), stride=(0,)), "reaches beyond"),
    "member that is not there": (tensor_pickle(key="1"), "it lacks 'data/1'"),
    "member elsewhere": (tensor_pickle(key="../../etc/passwd"), "it lacks"),
    "unknown storage": (tensor_pickle(kind="WildStorage"), r"more than tensors \(torch.Wild"),
    "unknown kind": (tensor_pickle(make="_rebuild_qtensor"), "more than tensors"),
    "cut off": (tensor_pickle()[:60], "is not a checkpoint or is damaged"),
    "no pickle": (b"hello", "is not a checkpoint or is damaged"),
    "huge index": (b"\x80\x02}r\xff\xff\xff\xff.", "holds no named tensors"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_archive_that_is_not_as_it_says_is_refused(name, tmp_path):
    data, sentence = DAMAGED[name]
    file = zip_of(tmp_path / "w.pt", {"data.pkl": data, "data/0": FLOATS})
    with pytest.raises(InputError, match=sentence) as error:
        read_checkpoint(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_other_members_that_are_not_as_they_should_be(tmp_path):
    good = {"data.pkl": tensor_pickle(), "data/0": FLOATS, "byteorder": sys.byteorder.encode()}
    file = tmp_path / "w.pt"
    assert read_checkpoint(zip_of(file, good))["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    other = {"little": b"big", "big": b"little"}[sys.byteorder]
    zeros = torch.zeros(1 << 28, dtype=torch.uint8).numpy().tobytes()
    modules = b"\x80\x02" + b"".join(  # each holds the one before twice
        b"c__torch__\nM\n)\x81}(X\x01\x00\x00\x00a" + (f"g{i}\n".encode() if i else b"N")
        + b"X\x01\x00\x00\x00b" + (f"g{i}\n".encode() if i else b"N") + f"ubp{i + 1}\n".encode()
        + (b"0" if i < 39 else b"") for i in range(40)) + b"."  # fmt: skip
    code = b"class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n"
    for change, sentence in (
        ({"byteorder": other}, "its byte order is"),
        ({"byteorder": b"x" * 99}, "its byte order is"),
        ({"data/0": FLOATS[:-1]}, "has 23 bytes, not 24"),
        ({"data/0": zeros}, "is larger than such a file can hold"),
        ({"data.pkl": modules, "code/__torch__.py": code}, "more than 100,000 modules"),
        ({"data.pkl": b"\x80\x02c__torch__\nM\n)\x81}b."}, "it lacks 'code/__torch__.py'"),
    ):
        zip_of(file, {**good, **change}, zipfile.ZIP_DEFLATED)
        with pytest.raises(InputError, match=sentence):
            read_checkpoint(file)
    with zipfile.ZipFile(file, "w") as empty:
        empty.writestr("model/x", b"")
    with pytest.raises(InputError, match=r"no data\.pkl"):
        read_checkpoint(file)
    data = bytearray(zip_of(file, good).read_bytes())
    data[data.index(FLOATS)] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="Bad CRC"):
        read_checkpoint(file)


# --------------------------------------------------------------------------- by every way in


@pytest.fixture
def small(tmp_path_factory):
    from models.small_towers import add_small_models, needs

    open_clip = needs("open_clip", "clip")
    add_small_models(open_clip, tmp_path_factory.mktemp("configs"))
    return open_clip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder from elsewhere, in which a person stands."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "ADTE_MODEL", "ADTE_DEVICE", "ADTE_DTYPE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "here"


@pytest.mark.slow
def test_weights_and_adte_toml_run_no_code(small, here, mark):
    photo = picture(here / "a.png")
    predict = ("predict", photo, "--classes", "a, b", "--views", 1)
    for file in hostile(here, mark):
        result = call(*predict, "--model", "small-ViT-B-16", "--weights", file)
        assert (result.exit_code, is_clean(result)) == (2, True), result.output
        lines = f'[defaults]\nmodel = "small-ViT-B-16"\nweights = "{file.name}"\n'
        (here / "adte.toml").write_text(lines)
        result = call(*predict)
        assert "weights under [defaults] is" in result.output
        assert "may not set" in result.output
        (here / "adte.toml").unlink()
        own = here.parent / "home" / ".config" / "adte" / "config.toml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(lines)
        assert repr(file.name) in call(*predict).output  # read, and refused
        own.unlink()
        with pytest.raises(InputError, match="cannot be wrapped"):
            adte.wrap(str(file))
        with pytest.raises(InputError, match="is no module of torch"):
            adte.wrap(str(file), classes=["a"])
        assert not mark.exists(), file


def test_downloaded_and_brought_weights_run_no_code(small, here, mark, monkeypatch):
    """By `models get --from`, and hence from ~/.cache/clip."""
    url = "https://example.org/small.pt"
    monkeypatch.setitem(small.pretrained._PRETRAINED, "small-ViT-B-16", {"ours": {"url": url}})
    for file in hostile(here, mark):
        shutil.rmtree(here.parent / "home", ignore_errors=True)
        result = call("models", "get", "small-ViT-B-16/ours", "--from", file)
        assert result.exit_code == 0, result.output
        cached = here.parent / "home" / ".cache" / "clip" / "small.pt"
        assert cached.read_bytes() == file.read_bytes()
        with pytest.raises(InputError, match=repr(str(cached))):
            adte.load_model("small-ViT-B-16/ours")
        assert not mark.exists(), file


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.load. received a zip file", "ignore:Detected pickle")
def test_folders_of_hugging_face_and_weights_of_timm_run_no_code(here, mark):
    from models.small_towers import needs

    needs("transformers", "hf")
    needs("timm", "timm")
    from models.test_huggingface import build

    build("clip", here)
    kept = (here / "model.safetensors").rename(here / "kept")
    for file in hostile(here.parent, mark):
        shutil.copy(file, here / "pytorch_model.bin")
        with pytest.raises(InputError):
            adte.load_model(f"hf:{here}")
        with pytest.raises(InputError):
            adte.load_model("timm:resnet10t", weights=file)
        assert not mark.exists(), file
    kept.rename(here / "model.safetensors")
    assert adte.load_model(f"hf:{here}").dim == 24  # preferred to what lies beside it
    (here / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass C: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        text = (here / name).read_text()
        for key in ("AutoConfig", "AutoModel", "AutoTokenizer"):
            value = '["evil.C", "evil.C"]' if key == "AutoTokenizer" else '"evil.C"'
            changed = text.replace("{", f'{{"auto_map": {{"{key}": {value}}},', 1)
            (here / name).write_text(changed)
            with suppress(InputError):
                adte.load_model(f"hf:{here}")
            assert not mark.exists(), (name, key)
        (here / name).write_text(text)
    text = (here / "config.json").read_text()
    (here / "config.json").write_text(text.replace("{", '{"attn_implementation": "a/b",', 1))
    with pytest.raises(InputError, match="names code of a hub for its attention"):
        adte.load_model(f"hf:{here}")
