"""How a model is loaded is declared once, and every command that loads one takes all of it."""

from __future__ import annotations

import os
from dataclasses import fields
from inspect import signature

import pytest
from click.testing import CliRunner

from adte import Classifier, InputError, load_model
from adte.cli import main
from adte.cluster.worker import Tower
from adte.core.loading import Loading
from adte.evaluate.features.cache import bundle
from adte.evaluate.source import Source

NAMES = {f.name for f in fields(Loading)}


def test_they_are_the_arguments_of_load_model():
    assert set(signature(load_model).parameters) - {"name"} == NAMES
    for function in (Classifier, Classifier.load):
        assert set(signature(function).parameters) >= NAMES


@pytest.mark.parametrize("verb", ["predict", "learn", "eval", "compare", "extract", "serve",
                                  "state", "paper"])  # fmt: skip
def test_every_verb_with_a_model_takes_them(verb):
    done = CliRunner().invoke(main, [verb, "--help"])
    assert all(f"--{name} " in done.output for name in NAMES)


@pytest.mark.parametrize("words", [("predict", "{photo}", "--classes", "cat, dog"),
                                   ("eval", "--data", "folder:{folder}")])  # fmt: skip
def test_a_runtime_that_cannot_be_had_is_an_error(words, tmp_path):
    from PIL import Image

    photo = tmp_path / "cat" / "a.png"
    photo.parent.mkdir()
    Image.new("RGB", (40, 30)).save(photo)
    named = [w.format(photo=photo, folder=tmp_path) for w in words]
    done = CliRunner().invoke(main, [*named, "--views", "2", "--runtime", "fast"])
    assert done.exit_code == 2
    assert "tiny" in done.output + done.stderr
    assert "runtime='torch'" in done.output + done.stderr


def test_features_take_no_runtime():
    with pytest.raises(InputError, match=r"--runtime torch needs images, and .* holds features"):
        Source(data=[f"cache:{bundle('replay')}"], runtime="torch").open()


def test_a_ready_made_model_takes_none():
    model = load_model("tiny")
    for given in ({"runtime": "torch"}, {"tokenizer": "folder"}, {"dtype": "float32"}):
        with pytest.raises(InputError, match="go with a model given by name"):
            Classifier(model, ["cat", "dog"], **given)


def test_files_that_nobody_named_for_another_model_are_left_out():
    how = Loading(weights="w.pt", tokenizer="t", device="cpu", runtime="torch")
    assert how.for_another({"tokenizer"}) == Loading(tokenizer="t", device="cpu", runtime="torch")
    assert how.for_another({"weights", "tokenizer"}) == how


def test_a_worker_is_told_all_of_it():
    model = load_model("tiny")
    tower = Tower.of(model, Loading(weights="w.pt", tokenizer="t", device="cpu", runtime="torch"))
    assert (tower.weights, tower.tokenizer) == (os.path.abspath("w.pt"), os.path.abspath("t"))
    assert (tower.device, tower.dtype, tower.runtime) == ("cpu", "float32", "torch")
    assert Tower.of(model, Loading(weights="random")).weights == "random"
    assert Tower.of(model, Loading()).open().fingerprint == model.fingerprint
