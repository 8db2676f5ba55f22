"""Facts of a file: each is what the schema says, or one sentence says that it is not."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adte import InputError, StateError
from adte.classifier.facts import read_state
from adte.classifier.learned import Lineage
from adte.core.schema import Positive, Scalar, read, read_fields, written
from adte.files.journal import Mark
from adte.images import Preprocess, Views
from adte.models.prompts import Prompts

PROMPTS = Prompts.of("seven", {"cat": ["It purrs."], "dog": ["It barks."]}, "both")
GOOD: dict[str, Any] = json.loads(
    json.dumps(
        {
            "format": 2,
            "version": "0.2.0",
            "model": "tiny",
            "fingerprint": "5f0c",
            "preprocess": asdict(Preprocess()),
            "scale": 100.0,
            "class_ids": None,
            "classes": ["cat", "dog"],
            "prompts": asdict(PROMPTS),
            "method": "adte",
            "options": {"beta": 0.9, "prior.size": 8, "rule": "paper", "clip": None, "on": True},
            "views": asdict(Views(count=8, seed=3)),
            "auto": False,
            "seen": 40,
            "frozen": False,
            "temperature": 0.6,
            "lineage": {"held": ["1f0e"], "begun_from": []},
            "outputs": {"labels.csv": asdict(Mark(40, "ab", "."))},
        }
    )
)


LATER = {"auto", "temperature", "lineage", "preprocess", "scale", "class_ids"}  # 0.1 had none


def test_a_good_header_comes_back_as_it_was_meant():
    facts = read_state(GOOD, "a.adte")
    assert Views(**facts["views"]) == Views(count=8, seed=3)
    assert Prompts(**facts["prompts"]) == Prompts(
        PROMPTS.templates, {"cat": ["It purrs."], "dog": ["It barks."]}, "both", False, PROMPTS.name
    )
    assert Preprocess(**facts["preprocess"]) == Preprocess()
    assert facts["lineage"] == Lineage(("1f0e",))
    same = {k: v for k, v in facts.items() if isinstance(GOOD[k], str | float | bool | list)}
    assert same == {k: GOOD[k] for k in same}


def test_an_option_that_came_later_is_what_it_was_before():
    """A file that does not name it is older; what is as it was then is written as it was then."""
    older = {k: v for k, v in GOOD["views"].items() if k != "enlarge"}
    views = Views(count=8, seed=3, enlarge=0.0)
    assert Views(**read_state({**GOOD, "views": older}, "a.adte")["views"]) == views
    assert read(Views, older) == views
    assert json.loads(json.dumps(written(views))) == older
    assert written(Views(8, seed=3)) == asdict(Views(8, seed=3))


def test_a_state_of_0_1_has_no_fingerprint_and_no_count():
    old = {k: v for k, v in GOOD.items() if k not in ("fingerprint", "seen", "outputs")}
    facts = read_state({**old, "format": 1}, "a.adte")
    assert (facts["fingerprint"], facts["seen"], facts["outputs"]) == (None, 0, None)
    with pytest.raises(StateError, match="seen is missing"):
        read_state(old, "a.adte")


def changed(place: str, value: Any) -> dict[str, Any]:
    facts = copy.deepcopy(GOOD)
    *path, last = place.split("/")
    inner = facts
    for key in path:
        inner = inner[key]
    inner[last] = value
    return facts


def deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("classes", "cat, dog", "classes is 'cat, dog', not a list of 1 to 1000000 entries"),
        ("classes", [], "classes is \\[\\], not a list of 1"),
        ("classes", ["cat", 3], r"classes\[1\] is 3, not a text"),
        ("classes", ["x"] * 1_000_001, "not a list of 1 to 1000000 entries"),
        ("classes", None, "classes is None"),
        ("model", 7, "model is 7, not a text"),
        ("method", ["adte"], r"method is \['adte'\], not a text"),
        ("version", {}, "version is {}, not a text"),
        ("frozen", 0, "frozen is 0, not true or false"),
        ("frozen", "no", "frozen is 'no'"),
        ("seen", -1, "seen is -1, not a whole number, at least 0"),
        ("seen", True, "seen is True"),
        ("seen", 1e3, "seen is 1000.0"),
        ("seen", 10**30, "seen is 1000"),
        ("fingerprint", 5, "fingerprint is 5"),
        ("views", [], r"views is \[\], not a table"),
        (
            "views/count",
            10**12,
            "views.count is 1000000000000, not a whole number, at",
        ),
        ("views/count", 0, "views.count is 0"),
        ("views/count", "64", "views.count is '64'"),
        ("views/count", 8.0, "views.count is 8.0"),
        ("views/scale", [0.1], "views.scale is .* not a list of 2 entries"),
        ("views/scale", ["a", "b"], r"views.scale\[0\] is 'a', not a number"),
        ("views/ratio", 1, "views.ratio is 1, not a list"),
        ("views/flip", None, "views.flip is None"),
        ("views/flip", float("nan"), "views.flip is nan"),
        ("views/interpolation", "nearest", "one of 'bilinear', 'bicubic'"),
        ("views/interpolation", ["bilinear"], "views.interpolation is"),
        ("views/seed", 2**64, "views.seed is"),
        ("views/zoom", 2, "does not know views.zoom"),
        ("prompts", None, "prompts is None, not a table"),
        ("prompts/templates", "a {}.", "prompts.templates is 'a {}.', not a list"),
        ("prompts/templates", [1], r"prompts.templates\[0\] is 1"),
        ("prompts/descriptions", [["a"]], "prompts.descriptions is"),
        ("prompts/descriptions", {"cat": "It purrs."}, "prompts.descriptions.cat is 'It purrs.'"),
        ("prompts/use", "none", "prompts.use is 'none', not one of"),
        ("prompts/more", 1, "does not know prompts.more"),
        ("options", [], "options is"),
        ("options/beta", [0.9], r"options.beta is \[0.9\], not true or false or a whole"),
        ("options/beta", {}, "options.beta is {}"),
        ("options/beta", float("nan"), "options.beta is nan"),
        ("options/beta", 10**400, "options.beta is 1000"),
        ("options/beta", deep(900), "options.beta is"),
        ("views/count", deep(900), "views.count is"),
        ("outputs", [1], "outputs is"),
        ("outputs/labels.csv", 3, "outputs.labels.csv is 3, not a table"),
        ("outputs/labels.csv", {"rows": -1}, "outputs.labels.csv.rows is -1"),
        ("outputs/labels.csv", {"rows": 1, "by": 2}, "does not know outputs.labels.csv.by"),
    ],
)
def test_malformed_headers(place, value, sentence):
    with pytest.raises(StateError, match=sentence) as caught:
        read_state(changed(place, value), "shop.adte")
    said = str(caught.value)
    assert said.startswith("the header of 'shop.adte' is damaged: ")
    assert said.endswith("; save it again")
    assert len(said) < 400


@pytest.mark.parametrize("key", sorted(GOOD.keys() - LATER - {"fingerprint", "outputs", "format"}))
def test_missing_facts(key):
    facts = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(StateError, match=f"{key} is missing"):
        read_state(facts, "a.adte")


@pytest.mark.parametrize("facts", [None, [], "x", 3, True])
def test_what_is_no_table(facts):
    with pytest.raises(StateError, match=r"it is .*, not a table"):
        read_state(facts, "a")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**12, 10**400, -1, 0, "adte", "{}", "a {}."]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
PLACES = [k for k in GOOD if k != "format"] + [
    f"{k}/{inner}" for k in ("views", "prompts", "options", "outputs") for inner in GOOD[k]
]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES), VALUES, min_size=1, max_size=3), st.data())
def test_any_header_is_read_or_is_one_sentence(changes, data):
    facts = copy.deepcopy(GOOD)
    for place, value in changes.items():
        *path, last = place.split("/")
        inner = facts[path[0]] if path else facts
        if isinstance(inner, dict):
            inner[last] = value
    for key in data.draw(st.sets(st.sampled_from(list(GOOD)), max_size=1)):
        del facts[key]
    read, said = None, ""
    try:
        read = read_state(facts, "a.adte")
    except StateError as error:
        said = str(error)
    assert "\n" not in said
    if read is None:
        return
    try:  # whatever passed can be used
        views, prompts = Views(**read["views"]), Prompts(**read["prompts"])
        assert 1 <= views.count <= 100_000
        prompts.describe()
        [Mark(**m) for m in (read["outputs"] or {}).values()]
        assert all(isinstance(c, str) for c in read["classes"])
    except InputError:  # of the right kind, but out of range: one sentence too
        pass


@dataclass
class Size:
    width: int
    unit: str = "px"
    names: tuple[str, ...] = ()


@dataclass
class Box:
    size: Size
    at: float | tuple[float, ...] | None = None
    notes: list[Any] = field(default_factory=list)


class Named(TypedDict, total=False):
    name: str
    count: Positive | None


def test_a_dataclass_is_a_schema():
    assert read(Size, {"width": 3, "names": ["a"]}) == Size(3, "px", ("a",))
    box = {"size": {"width": 3}, "at": [1, 2], "new": 1}
    assert Box(**read_fields(Box, box, more=True)) == Box(Size(3), (1, 2))
    assert read(Named, {"count": 2, "more": 1}) == {"count": 2, "more": 1}  # kept as it is
    for hint, value, said in (
        (Size, {}, "it.width is missing"),
        (Box, {}, "it.size is missing"),
        (Box, box, "does not know it.new"),
        (Box, {"size": {"width": 1, "extra": 1}}, "does not know it.size.extra"),
        (Box, {"size": {"width": 3}, "at": [1, "x"]}, r"it.at\[1\] is 'x', not a number"),
        (list[Size], [{"width": 1}, {"width": "x"}], r"it\[1\].width is 'x', not a whole number"),
        (Named, {"count": 0}, "it.count is 0, not a whole number, at least 1"),
        (dict[str, Scalar], {"a": []}, "it.a is"),
    ):
        with pytest.raises(ValueError, match=said):
            read(hint, value, "it")
    with pytest.raises(TypeError, match="no value of JSON is of the type"):
        read(complex, 0j)
