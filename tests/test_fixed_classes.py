"""Classifiers of fixed classes where users hold a classifier: timm's, and their own."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

import adte
from adte import Classifier, InputError, Preprocess, StateError
from adte.label.saved import Wanted
from adte.models import FixedClasses
from adte.models.registry import may_have_classes

NAMES = ["cat", "dog", "car", "cup", "oak"]
PIXELS = Preprocess(size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Net(nn.Module):
    """Colours to logits."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, classes, bias=False)
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(classes, 3, generator=g))

    def forward(self, pixels):
        return self.head(self.norm(pixels).mean((2, 3)))


def model(names=NAMES, **more) -> FixedClasses:
    return adte.wrap(Net(len(names)), preprocess=PIXELS, classes=names, **more)


def image(colour: str) -> Image.Image:
    return Image.new("RGB", (40, 30), colour)


COLOURS = ["red", "green", "blue", "white", "black", "orange"]


def test_all_classes_of_the_model_unless_some_are_named():
    clf = Classifier(model(), views=4)
    assert clf.classes == tuple(NAMES)
    found = clf.predict([image(c) for c in COLOURS])
    assert {p.label for p in found} <= set(NAMES)
    few = Classifier(model(), ["car", "cat"], views=4)
    assert few.classes == ("car", "cat")
    plain = Classifier(model(), views=4, method="zero-shot").predict(image("red"))
    named = Classifier(model(), ["car", "cat"], views=4, method="zero-shot").predict(image("red"))
    want = plain.probs[[2, 0]] / plain.probs[[2, 0]].sum()
    torch.testing.assert_close(named.probs, want, rtol=1e-3, atol=1e-4)  # float16 features
    with pytest.raises(InputError, match="class 'bird' is not among the 5 fixed classes of model"):
        Classifier(model(), ["cat", "bird"])


@pytest.mark.parametrize("method", ["tilt", "adte", "se", "zero", "tent", "memo"])
def test_methods_without_features_learn_and_are_saved(method, tmp_path):
    clf = Classifier(model(), views=4, method=method)
    clf.predict([image(c) for c in COLOURS])
    clf.save(tmp_path / "s.adte")
    again = Classifier.load(tmp_path / "s.adte", model())
    assert (again.classes, again.seen) == (clf.classes, 6)
    a, b = (c.predict(image("pink"), learn=False) for c in (clf, again))
    assert torch.equal(a.probs, b.probs)
    with pytest.raises(StateError, match="other classes"):
        Classifier(model(), NAMES[:3], method, views=4).load_state(tmp_path / "s.adte")


@pytest.mark.parametrize(("method", "need"), [("tda", "features"), ("tpt", "embeddings")])
def test_methods_that_need_more_are_refused(method, need):
    with pytest.raises(InputError, match=f"method '{method}' needs .*{need}.*fixed classes"):
        Classifier(model(), method=method)


def test_prompts_are_refused():
    for more in ({"templates": "seven"}, {"templates": ["a {}."]}):
        with pytest.raises(InputError, match="has fixed classes and reads no prompts; leave"):
            Classifier(model(), **more)


def test_classes_that_are_numbers_are_named_in_order():
    """A head of one's own on a network of timm."""
    head = model([*map(str, range(5))])
    clf = Classifier(head, NAMES, views=1, method="zero-shot")
    assert clf.classes == tuple(NAMES)
    same = Classifier(model(), views=1, method="zero-shot")
    assert clf.predict(image("red")).label == same.predict(image("red")).label
    assert Classifier(head, ["3", "1"], views=1).classes == ("3", "1")
    turned = Classifier(head, ["4", "3", "2", "1", "0"], views=1, method="zero-shot")
    plain = Classifier(head, views=1, method="zero-shot")
    for colour in COLOURS:
        assert turned.predict(image(colour)).label == plain.predict(image(colour)).label
    with pytest.raises(InputError, match="class 'cat' is not among the 5 fixed classes"):
        Classifier(head, NAMES[:2])


class Named(FixedClasses):
    """Two classes of one name, told apart by ids, as ImageNet has them."""

    def __init__(self):
        ids = ["n01", "n02", "n03"]
        super().__init__("named", ["crane", "cup", "crane"], ids, PIXELS)
        self.net = Net(3)
        self.eval()

    def classify(self, pixels):
        return self.net(pixels)


def test_classes_are_chosen_by_id_and_found_again(tmp_path):
    clf = Classifier(Named(), ["n03", "n01"], views=4)
    assert clf.classes == ("crane", "crane")
    clf.predict([image(c) for c in COLOURS])
    clf.save(tmp_path / "s.adte")
    again = Classifier.load(tmp_path / "s.adte", Named())
    a, b = (c.predict(image("pink"), learn=False) for c in (clf, again))
    assert torch.equal(a.probs, b.probs)
    assert again.model.ids == ("n03", "n01")
    with pytest.raises(StateError, match="class 0 is 'n03' there and 'n01' here"):
        Classifier(Named(), ["n01", "n03"], views=4).load_state(tmp_path / "s.adte")
    facts = again.facts
    by_id = Wanted(["n03", "n01"], views=4, explicit=frozenset({"classes"}))
    assert "classes" not in [name for name, *_ in by_id.differences(facts)]
    other = Wanted(["n01", "n03"], views=4, explicit=frozenset({"classes"}))
    assert "classes" in [name for name, *_ in other.differences(facts)]


def test_names_that_are_numbers_are_names(tmp_path):
    """Folders sorted as text: "10" comes before "2"; they were taken for places."""
    numbers = sorted(map(str, range(12)))
    clf = Classifier(model(numbers), views=4)
    assert clf.classes == tuple(numbers)
    clf.predict([image(c) for c in COLOURS])
    clf.save(tmp_path / "s.adte")
    again = Classifier.load(tmp_path / "s.adte", model(numbers))
    assert again.classes == tuple(numbers)
    a, b = (c.predict(image("pink"), learn=False) for c in (clf, again))
    assert (a.label, a.index) == (b.label, b.index)
    assert torch.equal(a.probs, b.probs)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"classes": NAMES}, "does not say how its pixels are made; pass preprocess=adte.Prep"),
        (
            {"classes": NAMES[:3], "preprocess": PIXELS},
            r"gives \(1, 5\) for one.*one name for each",
        ),
        ({"classes": "cat", "preprocess": PIXELS}, "classes='cat' are no list of names"),
        ({"classes": [1, 2], "preprocess": PIXELS}, r"classes=\[1, 2\] are no list of names"),
    ],
)
def test_bad_wraps(given, said):
    with pytest.raises(InputError, match=said):
        adte.wrap(Net(), **given)


def test_whether_classes_may_be_left_out_is_known_before_a_model_is_loaded():
    known = {"timm:resnet50": True, "tiny": False, "ViT-B-16/openai": False, "hf:a/b": False}
    assert {name: may_have_classes(name) for name in known} == known
    with pytest.raises(InputError, match="no classes were given; name them as in --classes"):
        Wanted(model="tiny").new()


def test_a_cluster_narrows_what_it_loads_by_name(monkeypatch):
    worker = pytest.importorskip("adte.cluster.worker")
    from adte.core.loading import Loading

    whole = model()
    few = whole.choose(["oak", "cat"])
    monkeypatch.setattr(worker, "load_with", lambda how, name: whole)
    opened = worker.Tower.of(few, Loading()).open()
    assert (opened.classes, opened.dim) == (("oak", "cat"), 2)
    assert worker.Tower.of(whole, Loading()).open().dim == 5
