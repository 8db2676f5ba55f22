"""The hunt: bad inputs of every kind end in one sentence and exit code 2, or work; nothing is
destroyed, and nothing is left behind.

Each row is what is typed after `adte`, a piece of what is said, the exit code, and the files that
it may leave. Everything else in the folder must be as it was.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import adte.classifier.arguments
from hunting import HEADERS, place
from predicting import call, is_clean, one_model, settle

USUAL = ("--classes", "cat, dog, car", "--views", "2", "--workers", "0")
LONG = "x" * 300


class Case(NamedTuple):
    args: tuple[str, ...]
    says: str
    code: int = 2
    makes: tuple[str, ...] = ()
    input: bytes | None = None
    files: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def photo(*args: str, says: str = "", code: int = 2, **more: object) -> Case:
    """`predict photo.png` with three classes."""
    return Case(("predict", "photo.png", *USUAL, *args), says, code, **more)


def paper(*args: str, **more: object) -> Case:
    """The same with an option of the paper's method."""
    return photo("--method", "adte", "--set", *args, **more)


def images(*names: str, says: str, code: int = 2, **more: object) -> Case:
    """`predict` of other images."""
    return Case(("predict", *names, *USUAL), says, code, **more)


def classes(text: str, says: str, code: int = 2) -> Case:
    return Case(("predict", "photo.png", "--classes", text, *USUAL[2:]), says, code)


def state(name: str, says: str, code: int = 2) -> Case:
    return Case(("predict", "photo.png", "--workers", "0", "--state", f"states/{name}.adte"), says)


CASES: dict[str, Case] = {}


def hunt(group: str, *cases: Case) -> None:
    for case in cases:
        said = " ".join(a if len(a) < 40 else f"{a[:20]}…{len(a)}" for a in case.args)
        name = f"{group}: {said} {dict(case.env) or ''}{len(CASES) if case.input else ''}"
        assert name not in CASES, name
        CASES[name] = case


hunt(
    "classes",
    Case(("predict", "photo.png"), "no classes were given"),
    classes("", "names no class"),
    classes(" ", "names no class"),
    classes(",", "',' names no class"),
    classes(" , ,", "', ,' names no class"),
    classes("@", "file of class names '' cannot be read (Is a directory)"),
    classes("@nowhere.txt", "'nowhere.txt' does not exist; give one name per line"),
    classes("@empty", "'empty' cannot be read (Is a directory)"),
    classes("@photo.png", "'photo.png' is not UTF-8 text"),
    classes("@utf16.txt", "'utf16.txt' is not UTF-8 text"),
    classes("@none.txt", "'none.txt' holds no name"),
    classes("@blank.txt", "'blank.txt' holds no name"),
    classes("@/dev/null", "'/dev/null' holds no name"),
    classes("@a\0b", "embedded null"),
    classes("@bom.txt", "\n  cat ", 0),
    classes("\ufeffcat, dog", "\n  cat ", 0),
    classes("cat", "100.0 %", 0),
    classes("cat, cat", "note: class name 'cat' occurs more than once", 0),
    classes("a" * 5000, "100.0 %", 0),
    classes("{}, dog", "{}", 0),
    classes("猫, 犬", "猫", 0),
    classes("[bold]x[/bold], [/]", "[bold]x[/bold]", 0),
)

hunt(
    "paths",
    Case(("predict", *USUAL), "no image was given"),
    images("", says="an empty path was given"),
    images("photo.png", "", says="an empty path was given"),
    images("nowhere.jpg", says="cannot open 'nowhere.jpg' (No such file or directory)"),
    images("nowhere/", says="cannot open 'nowhere/'"),
    images("photo.png/", says="(Not a directory)"),
    images("~", says="cannot open '~'"),
    images("http://a.b/c.jpg", says="check the address"),
    images("a\0b.jpg", says="embedded null"),
    images(LONG * 20, says="File name too long"),
    images("x/" * 3000, says="File name too long"),
    images("empty", says="the folder 'empty' holds no image"),
    images("hidden", says="the folder 'hidden' holds no image"),
    images("folder.jpg", says="the folder 'folder.jpg' holds no image"),
    images("dangling.jpg", says="cannot open 'dangling.jpg'"),
    images("loop.jpg", says="Too many levels of symbolic links"),
    images("/dev/null", says="'/dev/null' is a device, not an image"),
    images("/dev/zero", says="'/dev/zero' is a device, not an image"),
    images("/proc/self/mem", says="cannot read '/proc/self/mem' as an image"),
    images("/dev/stdin", says="standard input is empty", input=b""),
    images("-", says="standard input is empty", input=b""),
    images("-", says="cannot read these 7 bytes as an image (cannot identify image file);",
           input=b"garbage"),
    images("-", "-", says="standard input was named twice"),
    images("-", "/dev/stdin", says="standard input was named twice"),
    images("nowhere.jpg", "photo.png", says="1 image labelled, 1 could not be read"),
    images("some", says="1 image labelled, 1 could not be read"),
    images("plain", says="cat", code=0),
    images("-x", says="No such option '-x'"),
    Case(("predict", "--files-from", "nowhere.lst", *USUAL), "list of files 'nowhere.lst'"),
    Case(("predict", "--files-from", "", *USUAL), "the list of files '' cannot be read"),
    Case(("predict", "--files-from", "empty", *USUAL), "(Is a directory)"),
    Case(("predict", "--files-from", "none.txt", *USUAL), "'none.txt' is empty"),
    Case(("predict", "--files-from", "-", *USUAL), "the list of files '-' is empty", input=b""),
    Case(("predict", "--files-from", "missing.lst", *USUAL), "0 images labelled, 2 could not"),
    Case(("predict", "--files-from", "a\0b", *USUAL), "embedded null"),
    Case(("predict", "--files-from", "photo.lst", *USUAL), "cat", 0),
)  # fmt: skip

hunt(
    "archives",
    images("bad.zip", says="'bad.zip' cannot be read (File is not a zip file)"),
    images("bad.tar", says="'bad.tar' cannot be read"),
    images("bad.tar.gz", says="'bad.tar.gz' cannot be read"),
    images("none.zip", says="'none.zip' holds no image"),
    images("texts.zip", says="'texts.zip' holds no image"),
    images("links.tar", says="'link.png' in 'links.tar' is a link or a device"),
    images("cut.tar", says="'cut.tar' cannot be read"),
    images("climbing.zip", says="climbing.zip/climbed.png", code=0),
)

UNREADABLE = "as an image"
hunt(
    "images",
    *(images(name, says=f"cannot read {name!r} as an image")
      for name in ("text.jpg", "cut.jpg", "cut.png", "head.png", "magic.gif",
                   "drawing.png", "bad.webp", "bad.tif", "good.adte", "names.txt")),
    images("zero.jpg", says="'zero.jpg' is empty, as what was not copied"),
    images("bad.heic", says="pip install pillow-heif"),
    images("huge.png", says="megapixels, more than the 178 that are read"),
    images("wide.png", says="megapixels, more than the 178 that are read"),
    *(images(name, says=" %", code=0)
      for name in ("cmyk.jpg", "dot.png", "palette.gif", "deep.png")),
)  # fmt: skip

hunt(
    "numbers",
    *(photo(f"--{option}", value, says=f"Invalid value for '--{option}'")
      for option in ("views", "top", "batch")
      for value in ("0", "-1", "nan", "inf", "1e3", "x", "", "2.5")),
    *(photo(f"--{option}", value, says=f"Invalid value for '--{option}'")
      for option in ("seed", "workers")
      for value in ("-1", "nan", "inf", "x", "", "2.5", "1" + "0" * 30)),
    photo("--views", "1000000000000", says="is not in the range"),
    *(photo("--min-confidence", value, says="Invalid value for '--min-confidence'")
      for value in ("nan", "inf", "-inf", "x", "")),
    *(photo("--min-confidence", value, says="is not between 0 and 1; give 0 to 1")
      for value in ("-0.1", "1.1", "1e30")),
    *(photo("--wait", value, says="Invalid value for '--wait'") for value in ("nan", "inf", "x")),
    photo("--wait", "-1", says="a wait of -1 s"),
    photo("--top", "1" + "0" * 30, says=" %", code=0),
    photo("--batch", "1" + "0" * 30, says=" %", code=0),
)  # fmt: skip

hunt(
    "names",
    photo("--device", "gpu", says="device='gpu' cannot be used here"),
    photo("--device", "", says="device='' cannot be used here"),
    photo("--device", "cuda:99", says="device='cuda:99' cannot be used here"),
    photo("--device", "meta", says="device='meta' cannot be used here"),
    *(photo("--dtype", name, says=f"dtype={name!r} is not a float type to compute in")
      for name in ("int8", "float8_e4m3fn", "", "nonsense", "complex64", "Tensor")),
    photo("--model", "", says="unknown model ''"),
    photo("--model", "tinyy", says="did you mean 'tiny'"),
    photo("--model", "vit-b-32", says="did you mean 'ViT-B-32'"),
    photo("--model", "ViT-B-16", says="'ViT-B-16' names an architecture without weights"),
    photo("--model", "ViT-B-16/nope", says="unknown tag of 'ViT-B-16' 'nope'"),
    photo("--model", "hf:/nowhere", says="'/nowhere' does not exist"),
    photo("--model", "timm:", says="unknown timm model ''"),
    photo("--model", "nope:x", says="unknown kind of model 'nope:'"),
    photo("--model", "wrapped:x", says="handed over with adte.wrap"),
    photo("--model", "a/b/c", says="unknown model 'a/b/c'"),
    photo("--method", "", says="unknown method ''"),
    photo("--method", "adt", says="did you mean 'adte'"),
    photo("--method", "se,te", says="unknown method 'se,te'"),
    photo("--weights", "nowhere.pt", says="'tiny' has its weights and tokenizer embedded"),
    photo("--model", "ViT-B-16", "--weights", "nowhere.pt", says="'nowhere.pt' does not exist"),
    photo("--model", "ViT-B-16", "--weights", "photo.png", says="'photo.png' is not a checkpoint"),
    photo("--template", "", says="template '' must hold {} once"),
    photo("--template", "no place", says="template 'no place' must hold {} once"),
    photo("--template", "{} {}", says="template '{} {}' must hold {} once"),
    photo("--template", "a {}", "--template", "b", says="template 'b' must hold {} once"),
    photo("--sort", "copy", says="--sort needs --sort-into"),
    photo("--sort", "burn", says="'burn' is not one of"),
    photo("-q", "-v", says="-q and -v contradict each other"),
    photo("--nonsense", says="No such option '--nonsense'"),
)  # fmt: skip

hunt(
    "set",
    paper("seed=1", says=" %", code=0),
    *(paper(text, says=f"--set {text!r} is not NAME=VALUE")
      for text in ("beta", "=", "=1", "", "beta:1")),
    *(paper(f"beta={value}", says=f"option beta={value!r} is not float")
      for value in ("", "x", "0.5=6", "None", "[1]")),
    *(paper(f"{name}=nan", says=f"{name}=nan is not a number")
      for name in ("beta", "tau", "ratio", "q", "clip", "smoothing")),
    *(paper(f"beta={value}", says="is too large") for value in ("inf", "-inf", "1e400")),
    *(paper(f"beta={value}", says="0 < alpha < beta < 1") for value in ("0", "1")),
    paper("alpha=0.95", says="0 < alpha < beta < 1"),
    paper("tau=inf", says="tau=inf of the logit adjustment is too large"),
    paper("tau=-inf", says="is too large"),
    *(paper(f"ratio={value}", says="is outside (0, 1]") for value in ("0", "2", "-1")),
    *(paper(f"{name}=1", says=f"unknown option {name!r}")
      for name in ("nope", "classes", "views", "method", "β", ".", "prior.", "prior.nope")),
    paper("adjust=x", says="choose one of: after, before, none, per-view"),
    paper("bank=x", says="choose one of: all, fifo"),
    paper("prior=x", says="choose one of: fixed-point, marginal"),
    *(paper(f"{name}=-1", says="must be at least 0")
      for name in ("clip", "prior.clip", "smoothing", "warmup")),
    paper("size=0", says="must be at least 1"),
    paper("warmup=1e9", says="is not int"),
    paper("beta=0.5", "--set", "beta=0.6", says="--set beta was given twice"),
)  # fmt: skip


def outputs(name: str, says: str) -> list[Case]:
    """Each of the three outputs under a name that none can have."""
    return [
        photo("--out", name, says=says),
        photo(f"--json={name}", says=says),
        photo("--state", name, says=says),
    ]


hunt(
    "outputs",
    *outputs("", "an output has an empty name"),
    *outputs("empty", "cannot write 'empty': it is a folder"),
    *outputs("no/o.csv", "the folder 'no' does not exist; make it first"),
    *outputs("~/o.csv", "the folder '~' does not exist"),
    *outputs("photo.png", "an input is never written over"),
    *outputs("link.json", "is the input 'photo.png', and an input is never written over"),
    *outputs("notes.csv", "--force to write over it"),
    *outputs("notes.json", "--force to write over it"),
    *outputs("notes.jsonl", "--force to write over it"),
    *outputs("some/notes.csv", "--force to write over it"),
    *outputs("loop.jpg", "its links lead in a circle"),
    *outputs("/proc/o.csv", "cannot write --"),
    *outputs("a\0b.csv", "embedded null"),
    *outputs(f"{LONG}.csv", "File name too long"),
    photo("--out", "o.txt", says="does not say which format to write; end it in .csv"),
    photo("--out", "o", says="does not say which format to write"),
    photo("--out", "good.adte", says="is not an output of adte"),
    photo("--json=good.adte", says="is not an output of adte"),
    photo("--out", "/dev/full", says="cannot write '/dev/full' after 0 rows: the disk is full"),
    photo("--json", "/dev/full", says="cannot write '/dev/full': the disk is full"),
    photo("--state", "/dev/full", says="--state '/dev/full' is not a file"),
    photo("--state", "-", says="--state '-' is not a file"),
    photo("--out", "/dev/null", says="written: /dev/null (1 row)", code=0),
    photo("--json", "/dev/null", says="written: /dev/null", code=0),
    photo("--out", "o.json", "--json", "o.json", says="are the same file; give two names"),
    photo("--out", "o.json", "--state", "o.json", says="are the same file"),
    photo("--json", "o.json", "--state", "./o.json", says="are the same file"),
    photo("--json", "o.json", "--state", "some/../o.json", says="are the same file"),
    photo("--out", "-", "--json", "-", says="are the same file"),
    photo("--out", "/dev/stdout", "--json", says="are the same file"),
    photo("--json", says='"rows": [', code=0),
    Case(("predict", "--json", "photo.png", *USUAL), '"rows": [', 0),
    Case(("predict", "some", *USUAL, "--out", "some/notes.csv", "--force"),
         "exists in the input folder 'some' and is not of our making"),
    photo("--out", "o.csv", says="written: o.csv.adte (1 image seen), o.csv (1 row)", code=0,
          makes=("o.csv", "o.csv.adte")),
    photo("--out", "o.CSV", says="o.CSV (1 row)", code=0, makes=("o.CSV", "o.CSV.adte")),
    photo("--out", "o.csv/", says="(1 row)", code=0, makes=("o.csv", "o.csv.adte")),
    photo("--sort-into", "", says="--sort-into '' is empty"),
    photo("--sort-into", "photo.png", says="a file is in the way"),
    photo("--sort-into", "photo.png/x", says="cannot make the folder"),
    photo("--sort-into", "/proc/x", says="cannot make the folder '/proc/x'"),
    photo("--sort-into", "a\0b", says="embedded null"),
    Case(("predict", "some", *USUAL, "--sort-into", "some/in"), "give a folder outside of it"),
    Case(("predict", "some", *USUAL, "--sort-into", "some"), "give a folder outside of it"),
    Case(("predict", "-", *USUAL, "--sort-into", "s"), "is read once and cannot be sorted"),
    Case(("predict", "climbing.zip", *USUAL, "--sort-into", "s", "--sort", "move"),
         "use --sort copy"),
    Case(("predict", "climbing.zip", *USUAL, "--sort-into", "sorted"), "1 image copied", 0,
         ("sorted",)),
)  # fmt: skip

STATES = {
    "no version": "version is missing",
    "version 2": "version is 2, not a text",
    "no model": "model is missing",
    "model []": "model is [], not a text",
    "other model": "unknown model 'tinyy'",
    "fingerprint 3": "fingerprint is 3, not a text",
    "other weights": "was saved with other weights of model 'tiny'",
    "classes text": "classes is 'cat', not a list",
    "classes []": "classes is [], not a list",
    "classes [1]": "classes[0] is 1, not a text",
    "classes null": "classes[0] is None, not a text",
    "one class more": "it was saved for other classes",
    "no prompts": "prompts is missing",
    "prompts 1": "prompts is 1, not a table",
    "prompts []": "no prompt template was given",
    "prompts no {}": "template 'a photo' must hold {} once",
    "prompts more": "does not know prompts.more",
    "prompts use": "prompts.use is 'neither'",
    "method 5": "method is 5, not a text",
    "method unknown": "saved with method 'adt', which is not registered here",
    "method se": "",
    "no options": "options is missing",
    "options list": "options is ['smoothing'], not a table",
    "options deep": "options.smoothing is {'a': 1}",
    "options unknown": "unknown option of method 'tilt' 'bas'",
    "options text": "damaged",
    "options nan": "options.smoothing is nan",
    "options inf": "likeness=inf is too large",
    "no views": "views is missing",
    "views 64": "views is 64, not a table",
    "count 10^12": "views.count is 1000000000000, not a whole number",
    "count 10^30": "views.count is 1000000000000",
    "count 0": "views.count is 0",
    "count -1": "views.count is -1",
    "count text": "views.count is 'many'",
    "count 2.5": "views.count is 2.5",
    "count true": "views.count is True",
    "scale text": "views.scale is 'big', not a list of 2 entries",
    "scale [1]": "views.scale is [1], not a list of 2 entries",
    "scale wrong": "scale=(2.0, 1.0) of the views must be",
    "filter": "views.interpolation is 'nearest'",
    "views more": "does not know views.more",
    "no seen": "seen is missing",
    "seen -1": "seen is -1",
    "seen text": "seen is 'all'",
    "seen 10^40": "seen is 10000",
    "frozen 1": "frozen is 1, not true or false",
    "no format": "format is None",
    "format 99": "has state format 99",
    "format 0": "format is 0",
    "format text": "format is 'new'",
    "outputs list": "outputs is [1], not a table",
    "outputs rows": "outputs.o.csv.rows is 'all'",
    "no json": "exists and is not a state file of adte",
    "a list": "exists and is not a state file of adte",
    "deep": "exists and is not a state file of adte",
    "no tensor": "entry 'probs' is missing",
    "more tensors": "entry 'strange' is unexpected",
    "other shape": "does not fit: entry 'probs' is (7,)",
    "other dtype": "does not fit: entry 'probs' is (3,) torch.int8",
    "nan": "entry 'probs' holds NaN",
    "of others": "exists and is not a state file of adte",
    "cut": "exists and is not a state file of adte",
    "text": "exists and is not a state file of adte",
    "photo": "exists and is not a state file of adte",
}
del STATES["method se"]  # another method with the same state: it works
hunt("states", *(state(name, says) for name, says in STATES.items()))
hunt(
    "frozen states",
    photo("--freeze", "--state", "no.adte", says="'no.adte' does not exist"),
    photo("--freeze", "--state", "empty", says="'empty' is not a file"),
    photo("--freeze", "--state", "photo.png", says="'photo.png' is not a state file of adte"),
    photo("--freeze", "--state", "states/no json.adte", says="is damaged"),
    photo("--freeze", "--state", "states/deep.adte", says="nested too deeply"),
    photo("--freeze", "--state", "states/of others.adte", says="but not a state of adte"),
    Case(("predict", "photo.png", "--freeze", "--state", "good.adte"), " %", 0),
    Case(("predict", "photo.png", "--freeze", "--state", "good.adte", "--out", "good.adte"),
         "--out 'good.adte' is the input 'good.adte'"),
)  # fmt: skip

hunt(
    "config",
    photo(says="unknown key under [predict]", files=(("adte.toml", "[predict]\nviws = 3\n"),)),
    photo("-q", says="unknown table", files=(("adte.toml", "[predicted]\nviews = 3\n"),)),
    photo("-v", says="is not TOML", files=(("adte.toml", "views = = 3\n"),)),
    photo("--bars", says="views under [predict] is 'x'; give a whole number from 1, or 'auto',",
          files=(("adte.toml", "[predict]\nviews = 'x'\n"),)),
    photo("--no-bars", says="stands outside a table", files=(("adte.toml", "views = 3\n"),)),
    photo("--top", "1", says="seed under [predict] is -1",
          files=(("adte.toml", "[predict]\nseed=-1\n"),)),
    photo(says="unknown model 'nonsense'", env=(("ADTE_MODEL", "nonsense"),)),
    photo(says="device='gpu' cannot be used here", env=(("ADTE_DEVICE", "gpu"),)),
    photo(says="ADTE_DTYPE='x' is no dtype to run models in", env=(("ADTE_DTYPE", "x"),)),
    photo(says="kernel of the views in ADTE_VIEWS", env=(("ADTE_VIEWS", "x"),)),
)  # fmt: skip

hunt(
    "undo",
    Case(("undo",), "Missing argument"),
    Case(("undo", ""), "cannot read the list"),
    Case(("undo", "nowhere.csv"), "cannot read the list 'nowhere.csv'"),
    Case(("undo", "empty"), "(Is a directory)"),
    Case(("undo", "notes.csv"), "is not undo.csv of a sorted folder"),
    Case(("undo", "photo.png"), "cannot read the list 'photo.png'"),
    Case(("undo", "a\0b"), "embedded null"),
    *(Case(("undo", f"{i}.csv"), f"line 2 of the list '{i}.csv' is damaged", makes=(f"{i}.csv",),
           files=((f"{i}.csv", f"way,from,to,digest\n{line}\ncopy,a,b/c,d\n"),))
      for i, line in enumerate(("copy,/a,../photo.png,x", "copy,/a,/etc/passwd,x",
                                "burn,/a,cat/a.png,x", "copy,/a", "copy,/a,photo.png,x",
                                "copy,/a,/photo.png,x"))),
)  # fmt: skip

hunt(
    "models get",
    Case(("models", "get"), "Missing argument 'NAME'"),
    Case(("models", "get", ""), "unknown model ''"),
    Case(("models", "get", "tiny"), "'tiny' is in the package"),
    Case(("models", "get", "hf:x"), "'hf:x' is fetched when it is first loaded"),
    Case(("models", "get", "nope"), "unknown model 'nope'"),
    Case(("models", "get", "ViT-B-16"), "'ViT-B-16' names an architecture"),
    Case(("models", "get", "ViT-B-16/nope"), "unknown tag of 'ViT-B-16' 'nope'"),
    *(Case(("models", "get", "ViT-B-16/openai", *args), says, makes=("home",))
      for args, says in (
          (("--from", "nowhere"), "'nowhere' does not hold the weights (ViT-B-16.pt)"),
          (("--from", "empty"), "'empty' does not hold the weights"),
          (("--from", "photo.png"), "is not the published file"),
          (("--from", "http://127.0.0.1:1"), "Connection refused"),
          (("--from", "nonsense://x"), "unknown url type"),
          (("--from", "photo.png", "--to", "empty"), "cannot write 'empty'"),
          (("--from", "photo.png", "--to", "no/x.pt"), "cannot write 'no/x.pt'"),
          (("--from", "photo.png", "--to", "notes.csv"), "'notes.csv' exists"),
      )),
)  # fmt: skip

hunt(
    "demo",
    Case(("demo", "--limit", "0"), "Invalid value for '--limit'"),
    Case(("demo", "--limit", "-1"), "Invalid value for '--limit'"),
    Case(("demo", "--limit", "x"), "Invalid value for '--limit'"),
    Case(("demo", "--limit", "2", "--out", "photo.png"), "a file is in the way"),
    Case(("demo", "--limit", "2", "--out", "photo.png/x"), "cannot make the folder"),
    Case(("demo", "--limit", "2", "--out", ""), "--out '' is empty"),
    Case(("demo", "--limit", "2", "--out", "/proc/x"), "cannot make the folder '/proc/x'"),
    Case(("demo", "--cache", "nowhere"), "'nowhere' is not a cache"),
    Case(("demo", "--cache", "empty"), "'empty' is not a cache"),
    Case(("demo", "--limit", "2", "--json", "no/x.json"), "does not exist; make it first"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adte.classifier.arguments, "load_model", one_model())
        yield place(tmp_path_factory.mktemp("hunt"))


def contents(folder: Path) -> dict[str, object]:
    """Every file of the folder: what it holds, or where it leads."""
    found: dict[str, object] = {}
    for base, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path = Path(base, name)
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = os.readlink(path)
            else:
                found[key] = path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("name", CASES)
def test_hunt(name, folder, monkeypatch):
    args, says, code, makes, given, files, env = CASES[name]
    settle(monkeypatch, folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    for variable, value in env:
        monkeypatch.setenv(variable, value)
    before = contents(folder)
    for file, text in files:
        (folder / file).write_text(text)
    result = call(*args, input=given)
    for file in {*makes, *(f for f, _ in files)}:
        path = folder / file
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert is_clean(result), result.output
    assert result.exit_code == code, result.output
    assert says in result.output
    assert contents(folder) == before
    if code:
        sentences = [s for s in result.stderr.splitlines() if s.startswith(("error: ", "Error: "))]
        assert sentences, result.output


def test_the_hunt_is_a_large_one():
    assert len(CASES) >= 280
    assert set(HEADERS) - {"method se"} <= set(STATES)
