"""Classifier: predicting, streaming, learning, freezing, saving."""

from __future__ import annotations

import itertools
import json
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adte import (
    Classifier,
    InputError,
    Model,
    Preprocess,
    Sample,
    StateError,
    Views,
    compare,
    create_method,
    list_methods,
    load_model,
)
from adte.classifier.fit import reordered
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.files.states import load_state, save_state
from adte.methods.tilt import Tilt
from adte.methods.zero_shot import ZeroShot
from adte.testing import SmallModel

CLASSES = ["cat", "dog", "car", "tree"]


@pytest.fixture(scope="module")
def model():
    return SmallModel()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve pictures with structure, as files."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(12):
        small = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        Image.fromarray(small).resize((70, 50), Image.Resampling.BICUBIC).save(
            folder / f"{i:02d}.png"
        )
    return folder


def make(model, **options):
    return Classifier(model, CLASSES, **{"views": 8, **options})


def test_predict_explains_itself(model, photos):
    clf = make(model, method="adte", warmup=2)
    *_, p = clf.stream(photos)
    assert p.label == CLASSES[p.index]
    assert p.probs.shape == (4,)
    assert p.entropy.shape == (8,)
    assert len(p.kept) == 1
    assert p.q.shape == p.prior.shape == (4,)
    assert p.confidence == pytest.approx(float(p.probs.max()))
    assert p.top(2)[0] == (p.label, p.confidence)


@pytest.mark.parametrize("classes", [17, 40, 1000])
def test_a_tie_goes_to_the_first(classes):
    probs = torch.full((classes,), 0.5 / classes)
    probs[-3:] = 0.2
    for p in (Prediction(probs), Prediction(torch.full((classes,), 1 / classes))):
        first = [(int(name.removeprefix("class ")), x) for name, x in p.top(classes)]
        assert [i for i, _ in first[:3]] == [p.index, p.index + 1, p.index + 2]
        assert first == sorted(first, key=lambda pair: (-pair[1], pair[0]))


def test_every_kind_of_image_gives_the_same_answer(model, photos):
    path = photos / "00.png"
    array = np.asarray(Image.open(path))
    want = make(model).predict(path)
    for image in (
        str(path),
        path.read_bytes(),
        Image.open(path),
        array,
        torch.from_numpy(array.copy()),
    ):
        got = make(model).predict(image)
        assert got.label == want.label
        torch.testing.assert_close(got.probs, want.probs, rtol=0, atol=0)


def test_batches_and_streams_are_the_same_walk(model, photos):
    paths = sorted(photos.iterdir())
    arrays = np.stack([np.asarray(Image.open(p)) for p in paths])
    one = make(model)
    want = [one.predict(p) for p in paths]
    for got in (
        make(model).predict(paths),
        make(model).predict(arrays),
        list(make(model).stream(photos, order="listed")),
        list(make(model).predict_many(iter(paths))),
    ):
        assert [p.label for p in got] == [p.label for p in want]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=0)


def test_stream_is_lazy(model, photos):
    clf = make(model)
    stream = clf.stream(photos)
    assert clf.method.class_prior is None
    next(stream)
    assert clf.method.class_prior.seen == clf.seen == 1


def test_what_is_neither_names_nor_images_nor_a_number_is_refused(model, photos):
    with pytest.raises(InputError, match="classes=None are no names; pass a list of names"):
        Classifier(model, classes=None)
    clf = make(model)
    pixels = np.zeros((8, 8, 3), np.uint8)  # each row of which was an image
    grey, table = pixels[:, :, 0], np.array([["a.jpg", "cat"], ["b.jpg", "dog"]])
    others = [torch.zeros(channels, 8, 9) for channels in (1, 3, 4)]  # and with an alpha channel
    others += [other.permute(1, 2, 0).numpy() for other in others]
    for wrong in (None, b"photos", pixels, *others, grey, table):
        with pytest.raises(InputError, match=r"^.* is no stream of images; give a folder"):
            list(clf.stream(wrong))
    for given in ({"batch": "x"}, {"batch": 0}, {"batch": 1.5}, {"workers": None}):
        with pytest.raises(InputError, match="cannot be used; give a whole number, at least"):
            list(clf.stream(photos, **given))
    for wrong in (None, 3):
        with pytest.raises(InputError, match="is no path of a state file"):
            clf.save(wrong)
    p = clf.predict(photos / "00.png")
    assert p.top(0) == []
    for k in (-1, "x", 1.5, None):
        with pytest.raises(InputError, match="most probable classes cannot be given"):
            p.top(k)


def test_a_seed_beside_views_of_their_own_seed_is_refused(model):
    with pytest.raises(InputError, match=r"seed=9 goes with a number of views.*Views\(seed=9\)"):
        make(model, views=Views(count=2), seed=9)
    assert make(model, views=Views(count=2, seed=9), seed=9).views.seed == 9


def test_a_model_that_lacks_what_the_method_needs_is_refused_at_once():
    class Plain(SmallModel):
        offers = SmallModel().offers - {"embeddings"}

    with pytest.raises(InputError, match="method 'tpt' needs embeddings, which model 'small'"):
        Classifier(Plain(), CLASSES, "tpt")
    Classifier(Plain(), CLASSES)


def test_one_call_may_learn_nothing(model, photos):
    clf, other = make(model), make(model).freeze()
    looked = clf.predict(photos / "01.png", learn=False)
    assert torch.equal(looked.probs, other.predict(photos / "01.png").probs)
    assert [p.label for p in clf.stream(photos, learn=False)] == [
        p.label for p in other.stream(photos)
    ]
    clf.predict([photos / "01.png"] * 2, learn=False)
    assert clf.seen == 0
    clf.predict(photos / "01.png")
    assert clf.seen == 1


@pytest.mark.parametrize("method", ["tilt", "adte", "adte-released", "se"])
def test_saved_and_loaded_it_goes_on_identically(model, photos, tmp_path, method):
    paths = sorted(photos.iterdir())
    clf = make(model, method=method)
    for path in paths[:6]:
        clf.predict(path)
    file = clf.save(tmp_path / "shop.adte")
    twin = Classifier.load(file, model=model)
    assert twin.method.params == clf.method.params
    assert twin.method.name == method
    assert twin.views == clf.views
    for path in paths[6:]:
        torch.testing.assert_close(
            twin.predict(path).probs, clf.predict(path).probs, rtol=0, atol=0
        )


@dataclass(kw_only=True, eq=False)
class Last(ZeroShot):
    """A method that nobody registered, of a class that is: it turns the answer around."""

    strength: float = option(1.0, "of nothing")

    def decide(self, batch, readouts):
        out = super().decide(batch, readouts)
        return replace(out, probs=out.probs.flip(-1))


def test_a_method_of_ones_own_is_loaded_as_itself_or_not_at_all(model, photos, tmp_path):
    clf = make(model, method=Last(strength=2.0))
    before = clf.predict(photos / "00.png")
    file = clf.save(tmp_path / "own.adte")
    with pytest.raises(StateError, match="method 'Last', which is not registered here"):
        Classifier.load(file, model)
    with pytest.raises(StateError, match=r"strength=2\.0, but the method .* has 1\.0"):
        Classifier.load(file, model, Last())
    with pytest.raises(StateError, match="with method 'Last', but 'zero-shot' was passed"):
        Classifier.load(file, model, create_method("zero-shot"))
    with pytest.raises(InputError, match="'Last' is no method"):
        Classifier.load(file, model, "Last")
    with pytest.raises(StateError, match="has method 'Last', here it is 'zero-shot'"):
        make(model, method="zero-shot").load_state(file)
    twin = Classifier.load(file, model, clf.method)
    torch.testing.assert_close(twin.predict(photos / "00.png").probs, before.probs)


def test_answers_that_are_no_probabilities_are_no_predictions(model, photos):
    for make_of, said in ((lambda p: p * torch.nan, "no numbers"), (lambda p: 9 * p, "sum to 9")):
        clf = make(model, method=create_method("tilt"))
        decide = clf.method.decide
        clf.method.decide = lambda *a, f=make_of, d=decide: replace(d(*a), probs=f(d(*a).probs))
        for given in (photos / "00.png", [photos / "00.png"]):
            with pytest.raises(InputError, match=f"method 'tilt' gave no probabilities: .*{said}"):
                clf.predict(given)
            assert clf.seen == 0
            assert not clf.method.state_dict()


def test_a_batch_of_another_classifier_teaches_nothing(model, photos):
    clf = make(model)
    (batch,) = Classifier(model, CLASSES[:2], views=8).encode([("a", photos / "00.png")])
    with pytest.raises(InputError, match="of 2 classes was given to a classifier of 4; give one"):
        clf.step(batch)
    (batch,) = Classifier(model, CLASSES[::-1], views=8).encode([("a", photos / "00.png")])
    with pytest.raises(InputError, match="of 4 other classes was given to a classifier of 4"):
        clf.step(batch)
    clf.step(replace(batch, context=replace(batch.context, classes=CLASSES)), learn=False)
    clf.predict(photos / "00.png")
    assert clf.seen == 1


def test_a_method_that_has_learned_is_not_begun_with(model, photos):
    method = make(model).method
    make(model, method=method).learn(photos / "00.png")
    with pytest.raises(
        InputError, match=r"method 'tilt' has learned already.* give clone\(\) of it"
    ):
        make(model, method=method)
    assert make(model, method=method.clone()).seen == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_default_dtype_changes_no_answer(model, photos, dtype):
    want = [p.probs for p in make(model).stream(photos)]
    clf, before = make(model), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = [p.probs for p in clf.stream(photos)]
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("name", ["classes", "method", "model", "prompts", "views"])
def test_what_a_classifier_is_made_of_cannot_be_changed(model, photos, name):
    """Labels, facts or counts alone would change: not the class weights, views and state."""
    clf = make(model)
    for one in (clf, copy(clf), pickle.loads(pickle.dumps(clf))):
        with pytest.raises(InputError, match=f"^the {name} of a classifier .* make another"):
            setattr(one, name, getattr(one, name))
    assert clf.classes == tuple(CLASSES)


def test_a_method_that_is_passed_is_copied(model, photos, tmp_path):
    clf = make(model, method=Tilt(smoothing=1.0))
    clf.predict(photos / "00.png")
    file, own = clf.save(tmp_path / "own.adte"), Tilt(smoothing=1.0)
    one, two = (Classifier.load(file, model, method=own) for _ in range(2))
    one.predict(photos / "01.png")
    assert (one.method.class_prior.seen, two.method.class_prior.seen) == (2, 1)
    assert not own.state_dict()


def test_the_model_of_a_state_by_name(model, photos, tmp_path):
    file = Classifier("tiny", CLASSES, views=2).save(tmp_path / "tiny.adte")
    assert Classifier.load(file, "tiny").model.name == "tiny"
    with pytest.raises(StateError, match="with model 'tiny', but 'tiny-longtail' was passed"):
        Classifier.load(file, "tiny-longtail")
    with pytest.raises(InputError, match="int is no model"):
        Classifier.load(file, 3)
    file = make(model).save(tmp_path / "small.adte")
    with pytest.raises(InputError, match=r"'small'.*small.adte' was saved with this.*itself"):
        Classifier.load(file)


def test_state_of_something_else_is_refused(model, photos, tmp_path):
    clf = make(model)
    clf.predict(photos / "00.png")
    file = clf.save(tmp_path / "a.adte")
    other = Classifier(model, ["cat", "dog", "bus", "tree"], views=8)
    with pytest.raises(StateError, match="class 2 is 'car' there and 'bus' here"):
        other.load_state(file)
    with pytest.raises(StateError, match="4 classes there, 2 here"):
        Classifier(model, CLASSES[:2], views=8).load_state(file)
    with pytest.raises(StateError, match="has method 'tilt', here it is 'se'"):
        make(model, method="se").load_state(file)
    others = SmallModel(name="other", dim=8)
    with pytest.raises(StateError, match="saved with model 'small', but 'other' was passed"):
        Classifier.load(file, model=others)
    with pytest.raises(StateError, match="has model 'small', here it is 'other'"):
        make(others).load_state(file)
    renamed = SmallModel(name="other").eval()  # the same weights by another name
    for again in (Classifier.load(file, renamed), make(renamed)):
        again.load_state(file)
        assert again.seen == 1
    fresh = make(model)
    fresh.load_state(file)
    assert fresh.method.class_prior.seen == 1


def test_damaged_and_foreign_files(model, tmp_path):
    file = make(model).save(tmp_path / "a.adte")
    data = file.read_bytes()
    for name, content in (("short", data[: len(data) // 2]), ("text", b"hello"), ("empty", b"")):
        bad = tmp_path / name
        bad.write_bytes(content)
        with pytest.raises(StateError, match=name):
            Classifier.load(bad, model=model)
    with pytest.raises(InputError, match="does not exist"):
        Classifier.load(tmp_path / "none.adte", model=model)


def test_other_format_version(model, tmp_path, monkeypatch):
    monkeypatch.setattr("adte.files.states.FORMAT", 99)
    file = make(model).save(tmp_path / "a.adte")
    monkeypatch.undo()
    with pytest.raises(StateError, match="state format 99"):
        Classifier.load(file, model=model)


def test_failed_save_leaves_the_old_file(model, photos, tmp_path, monkeypatch):
    clf = make(model)
    file = clf.save(tmp_path / "a.adte")
    before = file.read_bytes()
    clf.predict(photos / "00.png")

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("adte.files.states.open", full_disk, raising=False)
    with pytest.raises((InputError, StateError), match="the disk is full"):
        clf.save(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.adte"]
    with pytest.raises(InputError, match="does not exist"):
        clf.save(tmp_path / "no" / "a.adte")


def test_facts_of_ones_own_beside_those_of_a_state(model, tmp_path):
    clf = make(model)
    file = clf.save(tmp_path / "a.adte", shop="corner", shelves=[1, 2])
    assert load_state(file)[1]["shop"] == "corner"
    before = file.read_bytes()
    for more, sentence in (
        ({"classes": ["x"]}, "'classes' is a fact of every state; give yours another name"),
        ({"frozen": "yes"}, "frozen='yes' is neither True nor False"),
        ({"note": object()}, "cannot be written as JSON"),
    ):
        with pytest.raises(InputError, match=sentence):
            clf.save(file, **more)
    assert file.read_bytes() == before


@pytest.mark.parametrize("method", ["tilt", "tda"])
def test_another_one_begins_anew_with_the_same_class_vectors(model, photos, method):
    clf, fresh = make(model, method=method), make(model, method=method)
    clf.predict(photos / "00.png")
    clf.temperature = 2.0
    clf.freeze()
    twin = clf.anew()
    assert twin.context is clf.context
    assert (twin.seen, twin.frozen, twin.temperature, clf.seen) == (0, False, 1.0, 1)
    for path in sorted(photos.iterdir())[:3]:
        assert torch.equal(twin.predict(path).probs, fresh.predict(path).probs)


@pytest.mark.parametrize("method", ["tilt", "adte"])
def test_merge_of_two_workers(model, photos, method):
    paths = sorted(photos.iterdir())
    whole, left, right = (make(model, method=method) for _ in range(3))
    for path in paths:
        whole.learn(path)
    for path in paths[:5]:
        left.learn(path)
    for path in paths[5:]:
        right.learn(path)
    left.merge(right)
    found, wanted = (clf.method.class_prior.log_prior for clf in (left, whole))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-7)
    assert left.seen == whole.seen == 12
    with pytest.raises(StateError, match="other classes"):
        left.merge(Classifier(model, ["a", "b"], views=8))


def test_bad_input_names_the_mend(model, photos, tmp_path):
    with pytest.raises(InputError, match="no class names"):
        Classifier(model, [])
    with pytest.raises(InputError, match="one text"):
        Classifier(model, "cat")
    with pytest.raises(InputError, match="number 2 is empty"):
        Classifier(model, ["cat", " "])
    with pytest.warns(UserWarning, match="'cat' occurs more than once"):
        assert len(Classifier(model, ["cat", "cat"], views=2).classes) == 2
    with pytest.raises(InputError, match=r"must hold \{\} once"):
        Classifier(model, CLASSES, templates=["a photo"])
    with pytest.raises(InputError):
        Classifier(model, CLASSES, views=0)
    with pytest.raises(InputError, match="unknown model"):
        Classifier("huge", CLASSES)
    with pytest.raises(InputError, match="ready made"):
        Classifier(model, CLASSES, create_method("se"), ratio=0.2)
    clf = make(model)
    (tmp_path / "text.jpg").write_text("not an image")
    whole = (photos / "00.png").read_bytes()
    (tmp_path / "short.png").write_bytes(whole[: len(whole) // 2])
    for name in ("text.jpg", "short.png", "missing.jpg"):
        with pytest.raises(InputError, match=name):
            clf.predict(tmp_path / name)
    assert clf.method.class_prior is None
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="holds no image"):
        list(clf.stream(empty))


@pytest.mark.parametrize("bad", [None, b"no", np.zeros((5, 5, 3))], ids=["None", "bytes", "float"])
def test_an_image_without_a_name_is_named_by_its_place(model, photos, bad):
    clf, images = make(model), [np.zeros((5, 5, 3), np.uint8), bad]
    calls = (clf.predict, lambda some: list(clf.stream(some)), clf.learn)
    for call in (*calls, lambda some: clf.calibrate(some, ["cat", "dog"])):
        with pytest.raises(InputError, match=r"^image 1: "):
            call(images)
    for alone in (clf.predict, clf.sample):
        with pytest.raises(InputError, match=r"^(?!image)"):
            alone(bad)


def test_states_of_another_kind_are_refused(model, photos, tmp_path):
    """Another model, other weights of the same name, other prompts, views, options; itself."""
    clf = make(model)
    clf.predict(photos / "00.png")
    file = clf.save(tmp_path / "a.adte")
    heavier = SmallModel()
    with torch.no_grad():
        heavier.project.weight.mul_(2)
    with pytest.raises(StateError, match="other weights of model 'small'"):
        Classifier.load(file, model=heavier)
    for options, said in (
        ({"templates": ["art of a {}."]}, "other prompts"),
        ({"views": 6}, "other views"),
        ({"seed": 3}, "other views"),
        ({"smoothing": 0.5}, r"other options \(smoothing is 50\.0 there, 0\.5 here\)"),
    ):
        other = make(model, **options)
        with pytest.raises(StateError, match=said):
            other.load_state(file)
        with pytest.raises(StateError, match=said):
            other.merge(clf)
    with pytest.raises(StateError, match="other weights"):
        make(heavier).merge(clf)
    with pytest.raises(StateError, match="into itself"):
        clf.merge(clf)
    with pytest.raises(StateError, match="frozen"):
        make(model).freeze().merge(clf)
    assert clf.seen == 1


def test_threads_lose_nothing(model, photos):
    paths = sorted(photos.iterdir()) * 5
    one, many = (make(model) for _ in range(2))  # in whatever order
    for path in paths:
        one.predict(path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many.predict, paths))
    assert many.seen == one.seen == many.method.class_prior.seen == 60
    torch.testing.assert_close(many.method.class_prior.log_prior, one.method.class_prior.log_prior)


@pytest.mark.parametrize("views", [8, "auto"])
def test_the_callers_autocast_changes_nothing(model, photos, views):
    plain = [p.probs for p in make(model, views=views).stream(photos)]
    with torch.autocast("cpu", torch.bfloat16):
        clf = make(model, views=views)
        cast = []
        for p in clf.stream(photos):
            assert torch.is_autocast_enabled("cpu")
            cast.append(p.probs)
        assert clf.learn(photos / "00.png") == 1
        clf.calibrate([photos / "00.png"], ["cat"])
    torch.testing.assert_close(torch.stack(cast), torch.stack(plain), rtol=0, atol=0)


@pytest.mark.parametrize("views", [8, "auto"])
def test_the_callers_default_device_changes_nothing(model, photos, tmp_path, views):
    """As in a notebook that begins with set_default_device("cuda"); "meta" holds no numbers."""
    made = make(model, views=views)
    want = [p.to_dict() for p in made.stream(photos)]
    logits = torch.randn(4, 6)
    alone = create_method("tilt").step(Sample(logits)).to_dict()
    table = [row["accuracy"] for row in compare(methods=["se", "tilt"], limit=8)]
    with torch.device("meta"):
        clf = make(model, views=views)
        got = list(clf.stream(photos, workers=2))
        Classifier.load(clf.save(tmp_path / "a.adte"), model)
        mine = create_method("tilt").step(Sample(logits))
        assert load_model("tiny").device.type == "cpu"
        assert [row["accuracy"] for row in compare(methods=["se", "tilt"], limit=8)] == table
    assert [p.to_dict() for p in got] == want
    assert mine.to_dict() == alone


def test_predictions_go_to_other_processes_by_value(model, photos):
    """As tensors each would take its batch along, and be five open files of the receiver."""
    clf = make(model)
    clf.learn(photos)
    batched = list(clf.stream(photos, batch=12, learn=False))
    one = clf.predict(photos / "00.png", learn=False)
    assert len(pickle.dumps(batched[0])) < 1.1 * len(pickle.dumps(one))
    sent = ForkingPickler.dumps(one)
    assert b"rebuild_storage" not in bytes(sent)
    for again in (pickle.loads(sent), deepcopy(one), copy(one)):
        assert again.to_dict() == one.to_dict()
        assert (again.top(2), again.probs.dtype) == (one.top(2), one.probs.dtype)


def test_a_list_with_a_bad_image(model, photos, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no")
    clf = make(model)
    with pytest.raises(InputError, match=r"bad\.jpg"):
        clf.predict([photos / "00.png", photos / "01.png", bad])
    assert clf.seen == 0
    found = clf.predict([photos / "00.png", bad, photos / "01.png"], errors="skip")
    assert [p.source for p in found] == [str(photos / "00.png"), str(photos / "01.png")]
    assert [u.source for u in clf.unread] == [str(bad)]
    assert clf.seen == 2
    with pytest.raises(InputError, match="way with errors"):
        clf.predict([bad], errors="ignore")


def test_states_of_the_first_version(model, photos, tmp_path):
    """What 0.1 learned by its default is read; other forms are refused."""
    ours = {"estimator": "marginal", "smoothing": 1, "smoothing_total": 20, "clip": 2, "few": 20,
            "direction": "released", "form": "vanishing", "adjust": "before"}  # fmt: skip
    clf = make(model, method="adte", **ours)
    clf.predict(photos / "00.png")
    old = {"seen": 1, "fresh": 0, "counts": torch.ones(4), "total": torch.full((4,), 0.25).double()}
    tensors = {f"prior.{k}": torch.as_tensor(v) for k, v in old.items()}
    facts = {k: v for k, v in clf.facts.items() if k not in ("fingerprint", "seen")}
    facts["options"] = {k.rpartition(".")[2]: v for k, v in clf.method.params.items()}
    facts["options"].update(adjust="before", entropy="adaptive", noise=0.0)
    for name in ("place", "kind", "iterate", "entropy"):  # 0.1's adte had no such options
        facts["options"].pop(name)
    path = tmp_path / "old.adte"
    monkey = {"format": 1, **facts, "version": "0.1.0"}
    _write_old(path, tensors, monkey)
    found = Classifier.load(path, model=model)
    assert found.seen == found.method.class_prior.seen == 1
    assert (found.method.name, found.method.params) == ("adte", clf.method.params)
    _write_old(path, tensors, {**monkey, "method": "adte-paper"})
    with pytest.raises(StateError, match=r"saved by adte 0\.1\.0.*learn it anew"):
        Classifier.load(path, model=model)


def _write_old(path, tensors, facts):
    from safetensors.torch import save

    path.write_bytes(save(tensors, metadata={"adte": json.dumps(facts)}))


@pytest.mark.parametrize("other", ["warm.adte", Path("warm.adte"), None, {"seen": 3}], ids=repr)
def test_only_a_classifier_is_merged(model, other):
    clf = make(model)
    with pytest.raises(InputError, match=r"is no classifier; .* merge\(Classifier.load\(PATH\)\)"):
        clf.merge(other)


@pytest.mark.parametrize("verb", ["step", "predict", "learn"])
def test_a_method_asks_for_samples(verb):
    logits = torch.zeros(4, 3)
    with pytest.raises(InputError, match=r"Tensor is neither a Sample .* as Sample\(logits\)"):
        getattr(create_method("adte"), verb)(logits)


def test_what_prompts_are_called_decides_nothing(model, photos, tmp_path):
    """The command line and Python name the same template otherwise."""
    make(model, templates=["a photo of a {}."]).save(tmp_path / "a.adte")
    clf = make(model, templates="a photo of a {}.")
    clf.load_state(tmp_path / "a.adte")
    clf.merge(make(model))
    with pytest.raises(StateError, match="other prompts"):
        make(model, templates="art of a {}").load_state(tmp_path / "a.adte")


def test_views_that_are_drawn_as_needed_are_others(model, tmp_path):
    make(model, views=np.int64(8)).save(tmp_path / "eight.adte")
    assert not Classifier.load(tmp_path / "eight.adte", model).auto
    make(model, views="auto").save(tmp_path / "auto.adte")
    with pytest.raises(StateError, match="has views='auto', here it is a fixed number"):
        make(model, views=64).load_state(tmp_path / "auto.adte")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["probs"].fill_(torch.inf), "'probs' holds infinite values"),
        (lambda t: t["seen"].fill_(-1), "'seen' holds a negative count"),
        (lambda t: t["seen"].fill_(2**63 - 1), "'seen' holds a count beyond"),
        (lambda t: t.update({k: v[:2] for k, v in t.items() if v.ndim}), "expected"),
    ],
)
def test_what_no_stream_could_have_left_is_refused(model, photos, tmp_path, change, said):
    clf = make(model, likeness=0.0)
    clf.predict(photos / "00.png")
    tensors = clf.method.state_dict()
    change(tensors)
    save_state(tmp_path / "bad.adte", tensors, clf.facts)
    with pytest.raises(StateError, match=said):
        Classifier.load(tmp_path / "bad.adte", model)
    before = clf.method.state_dict()
    with pytest.raises(StateError, match=said):
        clf.load_state(tmp_path / "bad.adte")
    assert all(torch.equal(before[k], v) for k, v in clf.method.state_dict().items())


def test_a_folder_that_cannot_be_listed_is_skipped_like_an_image(model, photos, monkeypatch):
    def walk(folder, failed=None, passed=None):
        failed(f"{folder}/closed", InputError("cannot list the folder"))
        return ["00.png", "01.png"]

    monkeypatch.setattr("adte.files.inputs.walk_images", walk)
    clf = Classifier(model, ["cat", "dog"], views=2)
    assert len(list(clf.stream(photos, errors="skip"))) == 2
    assert clf.unread == [(f"{photos}/closed", "cannot list the folder")]
    assert clf.learn(photos, errors="skip") == 2
    assert len(clf.unread) == 1
    with pytest.raises(InputError, match="cannot list the folder"):
        list(clf.stream(photos))


def test_parquet_files_and_addresses_are_streams_too(model, photos, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "p").mkdir()
    images = [photo.read_bytes() for photo in sorted(photos.iterdir())]
    parquet.write_table(arrow.table({"image": images}), tmp_path / "p" / "a.parquet")
    want = [p.probs.tolist() for p in make(model).stream(photos, order="listed")]
    for given in (tmp_path / "p" / "a.parquet", f"file://{photos}"):
        assert [p.probs.tolist() for p in make(model).stream(given, order="listed")] == want
        assert make(model).learn(given) == len(want)
    with pytest.raises(InputError, match=r"archives and no image.*name them, as in .*\*\.parquet"):
        list(make(model).stream(tmp_path / "p"))


def test_an_archive_is_a_folder_in_one_file(model, photos, tmp_path, monkeypatch):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for photo in sorted(photos.iterdir()):
            file.write(photo, photo.name)
    clf, other = (Classifier(model, ["cat", "dog"], views=2) for _ in range(2))
    want = [p.probs.tolist() for p in clf.stream(photos)]
    found = list(other.stream(archive))
    assert [p.probs.tolist() for p in found] == want
    assert f"{archive}/00.png" in {p.source for p in found}
    assert Classifier(model, ["cat", "dog"], views=2).learn(archive) == len(want)
    archive.write_bytes(b"no archive")
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)
    for errors, path in itertools.product(
        ("raise", "skip"), ("none", "./none", "none/", "./all.zip")
    ):
        with pytest.raises(InputError):  # all of it
            list(clf.stream(path, errors=errors))
    for errors in ("raise", "skip"):
        with pytest.raises(InputError, match=r"all\.zip.*make it again"):
            list(clf.stream(archive, errors=errors))


def test_what_comes_one_after_the_other_is_learned_as_it_comes(model, photos):
    paths = sorted(photos.iterdir())
    want = make(model)
    want.learn(photos, order="listed")
    for images in (iter(paths), (p for p in paths), dict.fromkeys(paths), np.array(paths, str)):
        clf = make(model)
        assert clf.learn(images) == clf.seen == len(paths)
        assert clf.predict(paths[0]).to_dict() == want.predict(paths[0], learn=False).to_dict()
    clf = make(model)
    with pytest.raises(ZeroDivisionError):
        clf.learn(paths[i // (i < 5)] for i in range(9))
    assert clf.seen == 5


@pytest.mark.parametrize("views", [8, "auto"])
def test_an_image_with_nan_is_named_and_costs_the_list(photos, views):
    class Odd(SmallModel):
        def encode_image(self, pixels):
            return super().encode_image(pixels) * (torch.nan if pixels.mean() > 0 else 1.0)

    clf = make(Odd(), views=views)
    bad, good = (
        next(p for p in sorted(photos.iterdir()) if _is_nan(clf, p) == nan) for nan in (True, False)
    )
    clf.predict(good)
    before = clf.method.state_dict()
    for call, images in ((clf.predict, bad), (clf.predict, [good, bad]), (clf.learn, [good, bad])):
        with pytest.raises(InputError, match=f"of '.*{bad.name}' hold NaN"):
            call(images)
    assert clf.seen == 1
    after = clf.method.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before)


def _is_nan(clf, path):
    return bool(clf.sample(path).logits.isnan().any())


def test_one_that_is_merged_may_learn_meanwhile(model, photos, monkeypatch):
    one, busy = make(model), make(model)
    busy.learn(photos)
    merge = one.method.merge

    def late(*given):
        merge(*given)
        busy.predict(photos / "00.png")

    monkeypatch.setattr(one.method, "merge", late)
    one.merge(busy)
    assert one.seen == one.method.class_prior.seen == 12


def test_a_photograph_is_not_written_over(model, photos, tmp_path):
    photo = tmp_path / "photo.png"
    photo.write_bytes((photos / "00.png").read_bytes())
    clf = make(model)
    with pytest.raises(InputError, match="exists and is not a state of adte"):
        clf.save(photo)
    assert photo.read_bytes() == (photos / "00.png").read_bytes()
    clf.save(photo, force=True)
    clf.save(photo)
    assert Classifier.load(photo, model).classes == tuple(CLASSES)


def test_an_argument_that_is_nearly_one(model):
    with pytest.raises(InputError, match="no argument 'template'; did you mean 'templates'"):
        make(model, template="a photo of a {}.")
    with pytest.raises(InputError, match="unknown option of method 'tilt'"):
        make(model, betta=1.0)


def test_a_state_from_before_small_images_had_views_of_their_own(tmp_path):
    """Loaded, it goes on as it was; what it learned serves newer views, too."""
    model, small = SmallModel(), np.zeros((9, 9, 3), np.uint8)
    older = Classifier(model, ["cat", "dog"], views=Views(4, enlarge=0.0))
    older.predict(small)
    tensors, facts = load_state(older.save(tmp_path / "a.adte"))
    del facts["views"]["enlarge"]
    save_state(tmp_path / "b.adte", tensors, facts)
    assert Classifier.load(tmp_path / "b.adte", model).views == older.views
    newer = Classifier(model, ["cat", "dog"], views=4)
    newer.load_state(tmp_path / "b.adte")
    with pytest.warns(UserWarning, match="go back to the same state, which counts twice"):
        newer.merge(older)
    assert (newer.seen, newer.views) == (2, Views(4))
    with pytest.raises(StateError, match="has other views \\(flip is"):
        Classifier(model, ["cat", "dog"], views=Views(4, flip=0.0)).load_state(tmp_path / "b.adte")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"preprocess": Preprocess(size=24, crop=0.5)}, r"learned from other pixels \(mean of the"),
        ({"logit_scale": 1.0}, "learned with a logit scale of .*, here it is .*; use the same"),
    ],
)
def test_a_model_of_the_same_weights_and_another_input_or_scale_is_refused(change, said, tmp_path):
    clf = Classifier(SmallModel(), ["cat", "dog"], views=4)
    clf.save(tmp_path / "s.adte")
    other = SmallModel()
    for name, value in change.items():
        setattr(other, name, value)
    with pytest.raises(StateError, match=said):
        Classifier.load(tmp_path / "s.adte", other)
    with pytest.raises(StateError, match=said):
        clf.merge(Classifier(other, ["cat", "dog"], views=4))


def test_a_model_whose_weights_cannot_be_told_from_others(tmp_path):
    """Two sets of weights in arrays had one fingerprint, and a state of one was loaded by both."""

    class Arrays(Model):
        name, dim, logit_scale = "arrays", 4, 10.0
        preprocess = Preprocess(size=8)

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.weights = np.random.default_rng(seed).normal(size=(3, 4))
            self.eval()

        def encode_image(self, pixels):
            x = torch.from_numpy(pixels.mean((2, 3)).double().numpy() @ self.weights).float()
            return torch.nn.functional.normalize(x, dim=-1)

        def encode_text(self, texts):
            return torch.eye(4)[: len(texts)]

    clf = Classifier(Arrays(0), ["cat", "dog"], views=2)
    clf.predict(np.zeros((9, 9, 3), np.uint8))
    with pytest.raises(
        InputError, match=r"'arrays' holds no tensors .* define a property `fingerp"
    ):
        clf.save(tmp_path / "s.adte")

    class Told(Arrays):
        fingerprint = property(lambda self: str(self.weights.sum()))

    told = Classifier(Told(0), ["cat", "dog"], views=2)
    told.save(tmp_path / "s.adte")
    with pytest.raises(StateError, match="other weights of model 'arrays'"):
        Classifier.load(tmp_path / "s.adte", Told(1))


def test_a_part_in_training_mode_is_noticed():
    """Its batch norm learned from the images that were predicted."""
    model = SmallModel()
    model.image_tower.train()
    with pytest.raises(InputError, match=r"is in training mode, or a part of it; call model.eval"):
        Classifier(model, ["cat", "dog"])


@pytest.mark.parametrize("name", list_methods())
def test_a_state_with_its_classes_in_another_order_is_taken_by_name(name, model, photos, tmp_path):
    """Each method goes on as if nothing had happened, or refuses in one sentence."""
    there = Classifier(model, CLASSES, name, views=3)
    if not there.method.stateful:
        pytest.skip("keeps no state")
    images = sorted(photos.iterdir())
    there.learn(images[:8])
    there.save(tmp_path / "there.adte")
    other = ["tree", "cat", "car", "dog"]
    here, order = Classifier(model, other, name, views=3), [CLASSES.index(c) for c in other]
    if name in ("ecalp", "dynaprompt", "bn", "tent", "deyo", "memo", "mltta"):
        with pytest.warns(UserWarning, match="another order"):  # noqa: SIM117
            with pytest.raises(StateError, match="may hold numbers of classes"):
                here.load_state(tmp_path / "there.adte")
        assert here.seen == 0
        return
    with pytest.warns(UserWarning, match="the same classes in another order; they are matched"):
        here.load_state(tmp_path / "there.adte")
    assert here.seen == 8
    for image in images[8:]:
        one, same = here.predict(image), there.predict(image)
        torch.testing.assert_close(one.probs, same.probs[order], atol=1e-4, rtol=1e-3)


def test_merging_takes_the_same_classes_in_another_order(model, photos):
    other = ["tree", "cat", "car", "dog"]
    images = sorted(photos.iterdir())
    one, two, more = make(model), make(model), Classifier(model, other, views=8)
    one.learn(images[:5])
    two.learn(images[5:])
    more.learn(images[5:])
    with pytest.warns(UserWarning, match="the other classifier has the same classes in another"):
        one.merge(more)
    whole = make(model)
    whole.learn(images[:5])
    whole.merge(two)
    assert one.seen == whole.seen == 12
    for name, value in whole.method.state_dict().items():
        torch.testing.assert_close(one.method.state_dict()[name], value, atol=1e-4, rtol=1e-3)
    assert reordered(["a", "b", "b"], ["b", "a", "b"]) is None  # which b is which, nobody knows


def test_a_classifier_and_its_predictions_are_shown_on_one_line_with_the_confidence(model, photos):
    clf = make(model)
    p = clf.predict(photos / "00.png")
    assert repr(clf) == "Classifier('small', 4 classes, 'tilt', learning, 1 images seen)"
    clf.temperature = 1.5
    assert repr(clf).endswith("1 images seen, confidence at temperature 1.5)")
    assert repr(p).startswith(f"Prediction({p.label!r}, confidence={p.confidence:.3f}, source=")
    bare = Prediction(torch.tensor([0.25, 0.75]))
    assert repr(bare) == "Prediction('class 1', confidence=0.750)"
    assert bare.top(1) == [("class 1", 0.75)]
    batch = next(clf.encode([("a", photos / "00.png"), ("b", photos / "01.png")], 2))
    shown = [repr(x) for x in (clf, p, bare, clf.method.step(batch))]
    assert all(len(line) < 120 and "\n" not in line for line in shown)
    assert "mean confidence=" in shown[-1]
