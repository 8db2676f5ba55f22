"""Templates, description files, ensembling and the cache of class weights."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from adte import InputError
from adte.data.cards import cards
from adte.models.prompts import (
    SINGLE,
    Prompts,
    check_classes,
    check_templates,
    class_weights,
    encode_prompts,
    ensemble,
    match_descriptions,
    read_descriptions,
    template_sets,
)
from adte.testing.small import SmallModel


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


def test_the_named_sets():
    sets = template_sets()
    assert sets["single"] == SINGLE
    assert len(sets["seven"]) == 7
    assert len(set(sets["eighty"])) == 80
    assert set(sets["seven"]) < set(sets["eighty"])
    for templates in sets.values():
        assert check_templates(templates) == list(templates)
    for name, template in (
        ("pets", "a photo of a {}, a type of pet."),
        ("Oxford_Pets", "a photo of a {}, a type of pet."),
        ("fgvc-aircraft", "a photo of a {}, a type of aircraft."),
        ("dtd", "{} texture."),
        ("eurosat", "a centered satellite photo of {}."),
        ("ucf101", "a photo of a person doing {}."),
    ):
        assert check_templates(name) == [template]
    for name, card in cards().items():  # a set's name says what the set is read with
        assert card.templates == sets.get(name, SINGLE)


def test_templates_are_open_clips():
    from models.small_towers import needs

    open_clip = needs("open_clip", "clip")
    assert list(template_sets()["eighty"]) == [f("{}") for f in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert list(template_sets()["seven"]) == [f("{}") for f in open_clip.SIMPLE_IMAGENET_TEMPLATES]


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ([], "no prompt template"),
        ("a photo", r"must hold {} once.*single, seven, eighty"),
        (["a photo"], "must hold {} once"),
        ("{} and {}", "must hold {} once"),
        ("{name}", "must hold {} once"),
        (None, "template None is no text"),
        (["{}", 3], "template 3 is no text"),
    ],
)
def test_bad_templates(templates, message):
    with pytest.raises(InputError, match=message):
        check_templates(templates)


def test_classes():
    assert check_classes([" cat ", "dog"]) == ["cat", "dog"]
    assert check_classes({"cat": 0, "dog": 1}.keys()) == ["cat", "dog"]
    assert check_classes(range(2)) == ["0", "1"]
    with pytest.warns(UserWarning, match="'tank' occurs more than once"):  # in no time
        check_classes([*map(str, range(20_000)), "tank", "tank"])
    for first, other in (("dog", "Dog"), ("dog", "DOG "), ("d\u00f3g", "do\u0301g")):
        with pytest.warns(UserWarning, match="differ only in case or spelling"):
            assert check_classes([first, "bird", other]) == [first, "bird", other.strip()]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("cat", "is one text"),
        ([], "no class names"),
        (["a", " "], "number 2 is empty"),
        (["c\0a\0t\0", "dog"], "zero byte"),
        ({"cat"}, "have no order"),  # or another one in every process
        ({0: "cat", 1: "dog"}, r"its keys or its values; pass a list .*values\(\)"),
        *((["cat", odd], r"class name number 2 is .* which is no text")
          for odd in (None, float("nan"), b"dog", ["dog"], True)),
    ],
    ids=repr,
)  # fmt: skip
def test_bad_classes(classes, message):
    with pytest.raises(InputError, match=message):
        check_classes(classes)


def test_a_name_with_braces_is_not_a_template():
    assert Prompts(("a {}.",)).texts(["{0} {x}"]) == [["a {0} {x}."]]


def test_ensemble_by_hand():
    """Two classes with 1 and 3 sentences: the second is the unit mean of sentences 2 to 4."""
    t = unit(torch.randn(4, 8))
    got = ensemble(t, [1, 3])
    torch.testing.assert_close(got[0], t[0])
    torch.testing.assert_close(got[1], unit(t[1:].mean(0)))
    for counts in ([4, 1], [3], [0, 4], []):
        with pytest.raises(InputError, match="segments"):
            ensemble(t, counts)


def test_encoding_in_batches_and_with_repeats():
    model = SmallModel()
    texts = ["a cat", "a very long dog indeed", "a cat", "an owl"]
    with torch.no_grad():
        want = model.encode_text(texts)
    torch.testing.assert_close(encode_prompts(model, texts, batch=2), want)


def test_long_encoding_says_how_long(monkeypatch):
    monkeypatch.setattr("adte.models.prompts.PATIENCE", 0.0)
    names = [f"thing {i}" for i in range(200)]
    note = r"encoding 400 prompts, about \d+ s more \(200 classes × 2 templates\); set ADTE_CACHE"
    with pytest.warns(UserWarning, match=note) as said:
        class_weights(SmallModel(), names, ["a {}.", "the {}."])
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        class_weights(SmallModel(), ["cat", "dog"])  # of one batch: nothing to wait for


def test_class_weights_are_unit_and_in_order():
    model = SmallModel()
    w = class_weights(model, ["polar_bear", "cat"], ["a {}.", "the {}."])
    assert w.shape == (2, model.dim)
    assert not w.requires_grad
    with torch.no_grad():
        t = model.encode_text(["a polar bear.", "the polar bear.", "a cat.", "the cat."])
    torch.testing.assert_close(w, unit(t.view(2, 2, -1).mean(1)))


# ------------------------------------------------------------------ descriptions


def test_descriptions_match_by_name_with_folding():
    table = {"Sea or Lake": ["blue"], "annual crop land": ["green", "brown"], "River": ["long"]}
    found = match_descriptions(table, ["Annual_Crop  Land", "sea or lake", "River", "Forest"])
    assert found == [["green", "brown"], ["blue"], ["long"], None]
    table = {"crane": ["machine"], "Crane": ["bird"]}  # a key as written goes first
    found = match_descriptions(table, ["Crane", "crane", "CRANE"])
    assert found == [["bird"], ["machine"], ["machine"]]


def test_descriptions_by_index_keep_repeated_names_apart(tmp_path):
    (tmp_path / "d.json").write_text(json.dumps([["a rocket"], ["a tank"], ["a projectile"]]))
    prompts = Prompts.of(descriptions=tmp_path / "d.json")
    assert prompts.texts(["missile", "tank", "missile"]) == [["a rocket"], ["a tank"],
                                                            ["a projectile"]]  # fmt: skip


def test_unequal_counts_reach_the_right_class_and_both_adds_the_templates():
    model = SmallModel()
    table = {"cat": ["it purrs"], "dog": ["it barks", "it runs", "it eats"]}
    w = class_weights(model, ["dog", "cat"], Prompts(descriptions=table))
    with torch.no_grad():
        torch.testing.assert_close(w[0], unit(model.encode_text(table["dog"]).mean(0)))
        torch.testing.assert_close(w[1], model.encode_text(table["cat"])[0])
    both = Prompts.of("a {}.", table, use="both")
    assert both.texts(["cat"]) == [["a cat.", "it purrs"]]
    assert both.name == "a {}. + descriptions"


def test_missing_classes_are_listed_or_fall_back():
    table = {"cat": ["it purrs"]}
    with pytest.raises(InputError, match="lack 2 of 3 classes: 'dog', 'owl'; add them"):
        Prompts.of(descriptions=table).texts(["dog", "cat", "owl"])
    with pytest.warns(UserWarning, match="lack 1 of 2 classes: 'dog'; these use the templates"):
        texts = Prompts.of("a {}.", table, allow_missing=True).texts(["dog", "cat"])
    assert texts == [["a dog."], ["it purrs"]]
    many = [f"c{i}" for i in range(20)]
    with pytest.raises(InputError, match=r"lack 20 of 20 classes: .*'c9', …;"):
        Prompts.of(descriptions=table).texts(many)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 300_000, "is not JSON .nested too deeply"),
        ('"cat"', "not in CuPL's format"),
        ('{"cat": []}', "class 'cat' has no list of sentences"),
        ('{"cat": "purrs"}', "class 'cat' has no list of sentences"),
        ('{"cat": ["purrs", ""]}', "class 'cat' has no list of sentences"),
    ],
)
def test_bad_description_files(tmp_path, text, message):
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_descriptions(tmp_path / "d.json")
    with pytest.raises(InputError, match="cannot read the description file"):
        read_descriptions(tmp_path / "none.json")
    for options in ({"use": "sideways"}, {"use": "both"}):
        with pytest.raises(InputError):
            Prompts(**options)


def test_our_descriptions_cover_tiny_imagenet():
    from adte.data.names import imagenet_names

    table = read_descriptions("tiny-imagenet")
    names = imagenet_names("tiny-imagenet")
    assert list(table) == list(names)
    texts = Prompts.of(descriptions="tiny-imagenet").texts(names)
    assert all(4 <= len(t) <= 6 for t in texts)
    sentences = [s for t in texts for s in t]
    assert len(set(sentences)) == len(sentences)
    assert all(s[0].isupper() and s.endswith(".") and len(s) < 120 for s in sentences)
    for name, of_class in zip(names, texts, strict=True):  # as CuPL's do, each names its class
        assert all(name.lower() in s.lower() for s in of_class)


@pytest.mark.parametrize(
    ("name", "classes", "sentences"),
    [("caltech101", 100, 3408), ("dtd", 47, 2820), ("eurosat", 10, 198), ("oxfordpets", 37, 1314)],
)
def test_lent_cupl_files_read_fully(shared_data, name, classes, sentences):
    table = read_descriptions(shared_data / "cupl" / f"CuPL_prompts_{name}.json")
    assert len(table) == classes
    prompts = Prompts.of(descriptions=table)
    assert sum(map(len, prompts.texts([k.replace(" ", "_").upper() for k in table]))) == sentences
    assert prompts.describe()["sentences"] == sentences


def test_describe_is_json_and_tells_files_apart():
    a = Prompts.of("seven", {"cat": ["it purrs"]}).describe()
    b = Prompts.of("seven", {"cat": ["it hisses"]}).describe()
    assert json.loads(json.dumps(a)) == a
    assert a["digest"] != b["digest"]
    assert Prompts.of("seven").describe()["digest"] is None


# ------------------------------------------------------------------ cache


@pytest.fixture
def counting(monkeypatch):
    """A model, and how often its text tower was asked."""
    calls: list[int] = []
    encode = SmallModel.encode_text
    monkeypatch.setattr(
        SmallModel, "encode_text", lambda s, texts: (calls.append(1), encode(s, texts))[1]
    )
    monkeypatch.delenv("ADTE_CACHE", raising=False)
    return SmallModel(), calls


def test_cache_is_used_and_keyed(counting, tmp_path, monkeypatch):
    model, calls = counting
    folder = tmp_path / "new" / "cache"
    first = class_weights(model, ["cat", "dog"], cache=folder)
    monkeypatch.setenv("ADTE_CACHE", str(folder))
    assert torch.equal(first, class_weights(model, ["cat", "dog"]))
    assert len(calls) == 1
    class_weights(model, ["dog", "cat"])  # another order
    class_weights(model, ["cat", "dog"], ["the {}."])
    class_weights(model.double(), ["cat", "dog"])
    model.float()
    with torch.no_grad():
        model.project.weight[0, 0] += 1
    moved = class_weights(model, ["cat", "dog"])
    assert (moved - first).abs().max() > 1e-4
    assert len(calls) == len(list(folder.iterdir())) == 5
    monkeypatch.delenv("ADTE_CACHE")  # only when asked
    class_weights(model, ["cat", "dog"])
    assert len(calls) == 6


def test_a_damaged_entry_is_made_anew(counting, tmp_path):
    model, calls = counting
    want = class_weights(model, ["cat"], cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:40])
    with pytest.warns(UserWarning, match="is damaged; it is made anew"):
        torch.testing.assert_close(class_weights(model, ["cat"], cache=tmp_path), want)
    class_weights(model, ["cat"], cache=tmp_path)
    assert len(calls) == 2
    with pytest.raises(InputError, match="as a cache folder"):
        class_weights(model, ["cat"], cache=entry)
