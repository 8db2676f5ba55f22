"""Confidence that means what it says: the temperature, how it is found, and where it is kept."""

from __future__ import annotations

import json

import pytest
import torch

from adte import Batch, Classifier, InputError, StateError, create_method
from adte.classifier.calibration import SPREAD, calibrate, indices_of, tempered
from adte.files.states import load_state, save_state
from adte.testing import SmallModel
from predicting import CLASSES, call, facts, is_clean, picture, pictures, settle

NAMES = ["cat", "dog", "car", "tree"]


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


@pytest.fixture
def photos(tmp_path):
    return pictures(tmp_path / "photos", 12)


@pytest.fixture
def labelled(tmp_path, photos):
    """A folder per class, of four pictures each."""
    for i, photo in enumerate(photos):
        folder = tmp_path / "labelled" / ("cat", "dog", "car")[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        photo.rename(folder / photo.name)
    return tmp_path / "labelled"


def make(**options) -> Classifier:
    return Classifier(SmallModel(), NAMES, views=4, **options)


def drawn(images: int, scale: float, classes: int = 6) -> tuple[list[Batch], list[int]]:
    """Images of one view whose truths are drawn from their logits, `scale` times as they are."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(images, 1, classes, generator=g)
    truths = torch.multinomial((scale * logits[:, 0]).softmax(-1), 1, generator=g)[:, 0]
    return [Batch(logits)], truths.tolist()


# --------------------------------------------------------------------------- the temperature


def test_a_temperature_keeps_the_order_and_makes_probabilities():
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.3, 0.3 + 1e-7, 0.2, 0.2]])
    for t in (0.1, 0.5, 2.0, 20.0):
        got = tempered(probs, t)
        assert torch.allclose(got.sum(-1), torch.ones(2, dtype=torch.float64))
        assert got.argmax(-1).tolist() == [0, 1]  # float32 would have lost the second
        assert (got[0, 0] > 0.5) == (t < 1)
    torch.testing.assert_close(tempered(probs, 1.0), probs.double())
    torch.testing.assert_close(tempered(probs[0], 0.5), probs[0].double() ** 2 / 0.38)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_many_labels_find_the_temperature_that_they_were_drawn_with(scale):
    found = calibrate(create_method("zero-shot"), *drawn(4000, scale), learn=False)
    assert found.zero_shot == found.accuracy  # which is all that it says
    assert found.temperature == pytest.approx(1 / scale, rel=0.08)
    assert found.after == pytest.approx(found.accuracy, abs=0.02)
    assert found.images == 4000
    sure = found.thresholds[2]
    assert sure.min_confidence == 0.7
    assert sure.wrong < 0.3
    labelled = [t.labelled for t in found.thresholds]
    assert labelled == sorted(labelled, reverse=True)


def test_few_labels_move_it_little():
    method, (batches, truths) = create_method("zero-shot"), drawn(4000, 1.0)
    best = batches[0].logits[:, 0].argmax(-1)
    right = [i for i in range(4000) if truths[i] == best[i]]  # as if it were always right
    one, few, many = (
        calibrate(method, [batches[0][:1]] if n == 1 else [Batch(batches[0].logits[right[:n]])],
                  [int(best[i]) for i in right[:n]], learn=False).temperature
        for n in (1, 10, 1000)
    )  # fmt: skip
    assert 1 > one > few > many
    assert one > torch.tensor(-SPREAD).exp()


def test_labels_are_names_or_indices():
    assert indices_of(["dog", 0, torch.tensor(2)], NAMES, 3) == [1, 0, 2]
    for label, why in (
        ("Dog", "'Dog' is none"),
        (4, "from 0 to 3"),
        (-1, "-1"),
        (None, "None"),
        (torch.tensor(1.7), "1.7"),
        (torch.tensor([0, 1, 0, 0]), "neither the name"),  # one-hot
    ):
        with pytest.raises(InputError, match=why):
            indices_of([label], NAMES, 1)
    with pytest.raises(InputError, match="several classes"):
        indices_of(["cat"], ["cat", "cat"], 1)
    assert indices_of([1], ["cat", "cat"], 1) == [1]


# --------------------------------------------------------------------------- a classifier


@pytest.mark.parametrize("method", ["tilt", "zero-shot", "tda"])
def test_labels_stay_and_confidence_follows_the_temperature(photos, method):
    clf, plain = make(method=method), make(method=method)
    clf.learn(photos[:3])
    plain.learn(photos[:3])
    state = clf.method.state_dict()
    found = clf.calibrate(photos, [NAMES[i % 4] for i in range(12)])
    assert found.temperature == clf.temperature != 1
    assert clf.seen == 3
    assert all(torch.equal(v, state[k]) for k, v in clf.method.state_dict().items())
    for p, q in zip(clf.stream(photos, batch=5), plain.stream(photos), strict=True):
        assert p.label == q.label
        torch.testing.assert_close(p.probs, tempered(q.probs, found.temperature))
    twin = plain.method
    assert all(torch.equal(v, twin.state_dict()[k]) for k, v in clf.method.state_dict().items())


@pytest.mark.parametrize("value", [0, -1, float("nan"), 1e-300, "warm", None], ids=repr)
def test_a_temperature_that_no_state_may_hold_is_refused(value):
    """It was saved, and the file could not be read again."""
    clf = Classifier(SmallModel(), ["cat", "dog"], views=2)
    with pytest.raises(InputError, match=r"temperature=.* cannot be used; give a number from"):
        clf.temperature = value
    clf.temperature = torch.tensor(2.0)
    assert clf.facts["temperature"] == 2.0


def test_a_frozen_classifier_is_calibrated_as_it_is(photos):
    truths = [i % 4 for i in range(12)]
    frozen, learning = make().freeze(), make()
    sure = [p.confidence for p in frozen.predict(photos)]
    assert frozen.calibrate(photos, truths).before == pytest.approx(sum(sure) / 12)
    both = [p.confidence for p in learning.predict(photos)]
    both += [p.confidence for p in learning.predict(photos, learn=False)]
    assert make().calibrate(photos, truths).before == pytest.approx(sum(both) / 24)
    assert sum(both) / 2 != pytest.approx(sum(sure))


def test_where_the_temperature_goes(photos, tmp_path):
    clf = make()
    clf.learn(photos)
    clf.temperature = 0.5
    clf.save(tmp_path / "a.adte")
    other = make()
    other.load_state(tmp_path / "a.adte")
    loaded = Classifier.load(tmp_path / "a.adte", SmallModel())
    loaded.begin()
    for it in (other, loaded):
        assert it.temperature == 0.5
    merged = make()
    merged.temperature = 2.0
    merged.merge(other)
    assert merged.temperature == 2.0
    other.reset()
    assert other.temperature == 0.5
    tensors, header = load_state(tmp_path / "a.adte")
    for odd in (0, -1, "warm", None, 1e9):
        save_state(tmp_path / "odd.adte", tensors, {**header, "temperature": odd})
        with pytest.raises(StateError, match="temperature"):
            make().load_state(tmp_path / "odd.adte")
    old = {k: v for k, v in header.items() if k != "temperature"}  # of an earlier version
    save_state(tmp_path / "old.adte", tensors, old)
    other.load_state(tmp_path / "old.adte")
    assert other.temperature == 1


def test_what_cannot_be_calibrated_with_is_named(photos, tmp_path):
    clf = make()
    with pytest.raises(InputError, match="12 images have 2 labels"):
        clf.calibrate(photos, ["cat", "dog"])
    with pytest.raises(InputError, match="labels=None are no list"):
        clf.calibrate([], None)
    with pytest.raises(InputError, match="no list of images"):
        clf.calibrate(str(tmp_path), [])
    with pytest.raises(InputError, match="no image to calibrate"):
        clf.calibrate([], [])
    (bad := tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bad\.jpg"):
        clf.calibrate([photos[0], bad], [0, 1])
    assert clf.temperature == 1
    ticks: list[int] = []
    found = clf.calibrate([bad, *photos[:3]], [1, 0, 2, 3], errors="skip", tick=ticks.append)
    assert [u.source for u in clf.unread] == [str(bad)]
    assert found.images == sum(ticks) == 3
    same = make()
    assert same.calibrate(photos[:3], [0, 2, 3]) == found  # labels went with their images


# --------------------------------------------------------------------------- the command line


def test_a_state_is_calibrated_and_predictions_go_by_it(labelled, tmp_path):
    state = tmp_path / "s.adte"
    done = call("calibrate", f"folder:{labelled}", "--state", state, *CLASSES)
    assert done.exit_code == 0, done.output
    assert is_clean(done)
    assert "of 12 images right (zero-shot " in done.stdout
    assert "--min-confidence" in done.stdout
    header = load_state(state)[1]
    assert header["temperature"] != 1
    assert header["seen"] == 0
    clf = Classifier.load(state)
    photo = picture(tmp_path / "photo.png", 50)
    want = clf.predict(photo, learn=False).confidence
    shown = call("predict", photo, "--state", state, "--freeze", "--json")
    assert json.loads(shown.stdout)["rows"][0]["confidence"] == pytest.approx(want)
    call("predict", photo, "--start", state, "--out", tmp_path / "rows.csv")
    assert load_state(f"{tmp_path / 'rows.csv'}.adte")[1]["temperature"] == header["temperature"]


def test_calibrating_keeps_what_a_state_knows_of_its_outputs(labelled, tmp_path):
    photo, out = picture(tmp_path / "photo.png", 50), tmp_path / "rows.csv"
    call("predict", photo, "--out", out, *CLASSES)
    state = f"{out}.adte"
    before = load_state(state)
    done = call("calibrate", f"folder:{labelled}", "--state", state, "--limit", 6, "--json")
    assert done.exit_code == 0, done.output
    assert facts(done)["images"] == 6
    tensors, header = load_state(state)
    changed = {k for k in header if header[k] != before[1].get(k)}
    assert changed == {"temperature", "lineage"}  # it went on from what it was
    assert header["temperature"] == facts(done)["temperature"]
    assert all(torch.equal(v, tensors[k]) for k, v in before[0].items())
    lines = out.read_text()
    assert call("predict", photo, "--out", out).exit_code == 0  # it goes on from there
    assert out.read_text() == lines


def test_labels_that_nobody_checked_are_noted(labelled, tmp_path):
    out = tmp_path / "rows.csv"
    call("predict", labelled, "--out", out, *CLASSES)
    done = call("calibrate", f"csv:{out}", "--state", f"{out}.adte")
    assert done.exit_code == 0, done.output
    assert "has the labels that adte gave" in done.stderr
    done = call("calibrate", f"folder:{labelled}", "--state", f"{out}.adte")
    assert "that adte gave" not in done.stderr


def test_folders_from_a_mac_have_the_classes_that_they_seem_to_have(labelled, tmp_path):
    (labelled / "cat").rename(labelled / "cafe\u0301")
    args = "--state", tmp_path / "s.adte", "--views", 4, "--classes", "dog, caf\u00e9, car"
    done = call("calibrate", f"folder:{labelled}", *args)
    assert done.exit_code == 0, done.output
    assert "of 12 images right" in done.stdout


def test_refused_calibrations_leave_the_state(labelled, tmp_path):
    state = tmp_path / "s.adte"
    call("learn", labelled, "--state", state, "--classes", "cat, dog", "--views", 4)
    before, image = state.read_bytes(), (labelled / "cat" / "000.png").read_bytes()
    for args, why in (
        ([f"folder:{labelled}", "--state", state], "'car', which is none of the classes"),
        ([labelled, "--state", state], "write NAME:PATH"),
        (["folder:nowhere", "--state", state], "does not exist"),
        ([f"folder:{labelled}", "--state", "-"], "not a file"),
        ([f"folder:{labelled}", "--state", labelled / "cat" / "000.png", "--force"], "000.png"),
        (
            [f"folder:{labelled}", "--state", state, "--json", labelled / "cat" / "000.png"],
            "000.png",
        ),
        ([f"folder:{labelled}", "--state", state, "--json", state], "s.adte"),
    ):
        done = call("calibrate", *args)
        assert done.exit_code == 2, done.output
        assert is_clean(done)
        assert why in done.stderr
    assert state.read_bytes() == before
    assert (labelled / "cat" / "000.png").read_bytes() == image
