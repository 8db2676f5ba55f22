"""A config file: found, checked, and overruled by what stands nearer."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from adte import InputError
from adte.cli import main
from adte.cli._verbs import MODULES
from adte.cli.config import HERE, KEYS, VERBS, find_config, load_config
from adte.files.states import load_state
from predicting import call, pictures

GOOD = """
[defaults]
model = "ViT-B-16/openai"
device = "cuda"
weights = "b16.safetensors"
templates = ["a photo of a {}.", "a {}."]

[predict]
views = 32
min_confidence = 0.5
device = "cpu"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A current folder, and an environment with an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "ADTE_MODEL", "ADTE_DEVICE", "ADTE_DTYPE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def own(place: Path) -> Path:
    """A person's own file."""
    return place / "home" / ".config" / "adte" / "config.toml"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_there_are_no_defaults(place):
    assert find_config() is None
    assert load_config().defaults("predict") == {}


def test_defaults_and_the_tables_of_verbs(place):
    path = write(own(place), GOOD)
    config = load_config()
    assert config.defaults("predict") == {
        "model": "ViT-B-16/openai", "device": "cpu", "weights": "b16.safetensors",
        "templates": ["a photo of a {}.", "a {}."], "views": 32, "min_confidence": 0.5,
    }  # fmt: skip
    assert config.defaults("eval")["device"] == "cuda"
    assert "views" not in config.defaults("eval")
    assert {s.origin for s in config.settings("predict").values()} == {str(path)}


def test_the_environment_wins_over_the_file(place, monkeypatch):
    write(own(place), GOOD + '\n[eval]\nmodel = "tiny"\n')
    assert "weights" not in load_config().defaults("eval")  # they are another model's
    monkeypatch.setenv("ADTE_MODEL", " ViT-L-14/openai ")
    monkeypatch.setenv("ADTE_DTYPE", "float32")
    monkeypatch.setenv("ADTE_DEVICE", "")  # as if it were not set
    settings = load_config().settings("predict")
    assert settings["model"] == ("ViT-L-14/openai", "ADTE_MODEL")
    assert settings["dtype"] == ("float32", "ADTE_DTYPE")
    assert settings["device"].value == "cpu"
    assert "weights" not in settings
    home = {"XDG_CONFIG_HOME": str(own(place).parent.parent)}
    assert load_config(environ=home).defaults("predict")["model"] == "ViT-B-16/openai"


def test_the_first_file_that_exists_is_read(place, monkeypatch):
    home = write(own(place), "[defaults]\nseed = 1\n")
    assert find_config() == home
    assert load_config().defaults("eval") == {"seed": 1}
    xdg = write(place / "xdg" / "adte" / "config.toml", "[defaults]\nseed = 2\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "xdg"))
    assert find_config() == xdg
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert find_config() == home
    write(place / "work" / "adte.toml", "[defaults]\nseed = 3\n")
    assert load_config().defaults("eval") == {"seed": 3}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[defaults]\nmodle = "tiny"', r"unknown key under \[defaults\] in .* 'modle' \(did you "
         r"mean 'model'\?\); choose one of: device"),
        ("[predikt]\nviews = 1", r"unknown table in .* 'predikt' \(did you mean 'predict'\?\)"),
        ('model = "tiny"', r"'model' stands outside a table; put it under \[defaults\]"),
        ("colour = 1", "unknown key in .* 'colour'; choose one of"),
        ("[defaults]\nviews = '64'", r"views under \[defaults\] is '64'; give a whole number"),
        ("[defaults]\nviews = 1.5", "views .* is 1.5; give a whole number"),
        ("[defaults]\nviews = true", "views .* is True; give a whole number"),
        ("[defaults]\nmodel = 3", "model .* is 3; give a text"),
        ("[defaults]\nmodel = ['a']", "model .* give a text"),
        ("[defaults]\ntemplates = []", "give a text or a list of texts"),
        ("[defaults]\ntemplates = ['a {}.', 3]", "give a text or a list of texts"),
        ("[defaults]\nmin_confidence = 'high'", "give a number from 0 to 1 there"),
        ("[predict]\nmin_confidence = 5", r"min_confidence under \[predict\] is 5; give a number"),
        ("[predict]\nmin_confidence = nan", "is nan; give a number from 0 to 1 there"),
        ("[predict]\nviews = 0", r"views under \[predict\] is 0; give a whole number from 1, or"),
        ("[defaults]\ntop = 0", "top .* is 0; give a whole number from 1 there"),
        ("[defaults]\nseed = -1", "seed .* is -1; give a whole number from 0 there"),
        ("[defaults.model]\nname = 'tiny'", "model .* give a text"),
        ("[defaults", "is not TOML .*; mend that line"),
        ("[defaults]\nseed = 1\nseed = 2", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_one_sentence(text, sentence, place):
    write(place / "work" / "adte.toml", text)
    with pytest.raises(InputError, match=sentence) as caught:
        load_config()
    assert "adte.toml" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_views_may_be_drawn_as_needed_where_the_verb_can(place):
    path = place / "work" / "adte.toml"
    write(path, '[predict]\nviews = "auto"')
    assert load_config().defaults("predict") == {"views": "auto"}
    for table, wanted in (
        ("predict", "a whole number from 1, or 'auto', there"),
        ("eval", "a whole number from 1 there"),
    ):
        write(path, f'[{table}]\nviews = "{"all" if table == "predict" else "auto"}"')
        with pytest.raises(InputError, match=wanted):
            load_config()


def test_files_that_cannot_be_read(place):
    path = place / "work" / "adte.toml"
    path.write_bytes("[defaults]\nmodel = 'größe'".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load_config()
    path.write_text("\ufeff[defaults]\nviews = 8\n", encoding="utf-8")
    assert load_config().defaults("predict") == {"views": 8}
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_config()
    path.rmdir()
    if hasattr(os, "mkfifo"):
        path.symlink_to("nowhere")
        with pytest.raises(InputError, match="cannot be read"):
            load_config()


def test_every_key_may_stand_in_every_table(place):
    examples = {"a text": '"x"', "a whole number from 0": "0", "a whole number from 1": "1",
                "a number from 0 to 1": "0.5", "a text or a list of texts": '"a {}."'}  # fmt: skip
    lines = "\n".join(f"{key} = {examples[wanted]}" for key, wanted in KEYS.items())
    write(own(place), f"[defaults]\n{lines}\n[serve]\n{lines}\n")
    assert load_config().defaults("serve").keys() == KEYS.keys()


@pytest.mark.parametrize(
    "line",
    ['weights = "w.pt"', 'weights = "random"', 'model = "hf:."', 'model = "hf:owner/name"',
     'model = "timm:resnet50"', 'model = "mine:x"', 'templates = "@/etc/passwd"',
     'templates = ["a {}.", "@notes.txt"]'],
)  # fmt: skip
def test_the_current_folder_chooses_no_weights_and_no_files(line, place):
    text = f"[predict]\n{line}\n"
    write(place / "work" / "adte.toml", text)
    key = line.split()[0]
    for verb in ("predict", "eval"):
        result = call(verb, "a.png", "--classes", "a, b") if verb == "predict" else call(verb)
        assert result.exit_code == 2
        assert f"{key} under [predict] is" in result.output
        assert "put it into ~/.config/adte/config.toml, or give it on the" in result.output
        assert len(result.output.splitlines()) == 1
    (place / "work" / "adte.toml").unlink()
    write(own(place), text)
    assert key in load_config().defaults("predict")


def test_only_keys_that_choose_no_files_are_for_a_folder():
    assert set(KEYS) - set(HERE) == {"weights"}  # a new key is thought of here first
    assert set(HERE) <= set(KEYS)


def test_what_the_file_of_a_folder_sets_is_said_in_one_line(place):
    lines = '[defaults]\nmodel = "tiny"\nviews = 3\ntemplates = "a \\u001b[31m{}."\ntop = 2\n'
    write(place / "work" / "adte.toml", lines)
    (photo,) = pictures(Path("photos"), 1)
    ask = ("predict", photo, "--classes", "a, b")
    noted = call(*ask, "--top", 1).stderr.splitlines()[0]
    assert noted == (r"note: adte.toml sets model='tiny', templates=['a \x1b[31m{}.'], views=3")
    assert "adte.toml" not in call(*ask, "-q").stderr
    assert "adte.toml" not in call(*ask, "--model", "tiny", "--views", 2, "--template", "a {}.",
                                   "--top", 1).stderr  # fmt: skip
    (place / "work" / "adte.toml").rename(write(own(place), ""))
    result = call(*ask)
    assert (result.exit_code, "sets" in result.stderr) == (0, False)


def verb(name: str) -> click.Command:
    return main.get_command(click.Context(main), name)


def test_every_verb_that_takes_a_model_has_defaults_of_ones_own():
    verbs = {n for n in MODULES if any("--model" in p.opts for p in verb(n).params)}
    assert {"predict", "learn", "paper", "study"} <= verbs
    assert verbs - {"state"} <= set(VERBS)  # whose model is that of the streams


def test_every_key_is_an_option_of_some_verb():
    options = {
        name
        for name in VERBS
        for p in verb(name).params
        if isinstance(p, click.Option)
        for name in (p.name, *(o.removeprefix("--").replace("-", "_") for o in p.opts))
    }
    assert KEYS.keys() <= options


def test_learn_takes_them(place):
    write(place / "work" / "adte.toml", '[defaults]\nmodel = "tiny"\nviews = 3\nmethod = "se"\n')
    pictures(Path("photos"), 2)
    result = call("learn", "photos", "--classes", "a, b", "--state", "l.adte")
    assert result.exit_code == 0, result.output
    facts = load_state("l.adte")[1]
    assert (facts["method"], facts["views"]["count"]) == ("se", 3)


def test_studies_take_them_for_images_alone(place, monkeypatch):
    """The embedded bundles and a cache were encoded before, by a model of their own."""
    monkeypatch.setenv("ADTE_MODEL", "no-such-model")
    pictures(Path("lab"), 1)
    refused = call("paper", "two-classes", "--data", "folder:lab", "--out", "out")
    assert refused.exit_code == 2
    assert "no-such-model" in refused.output
    result = call("paper", "two-classes", "--preset", "tiny", "--out", "out")
    assert result.exit_code == 0, result.output
