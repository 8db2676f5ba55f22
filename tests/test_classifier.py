"""Classifier: predicting, streaming, learning, freezing, saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from adte import Classifier, InputError, StateError, Views, create_method
from small_model import SmallModel

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
    clf = make(model, warmup=2)
    *_, p = clf.stream(photos)
    assert p.label == CLASSES[p.index]
    assert p.probs.shape == (4,)
    assert p.entropy.shape == (8,)
    assert len(p.kept) == 1
    assert p.q.shape == p.prior.shape == (4,)
    assert p.confidence == pytest.approx(float(p.probs.max()))
    assert p.top(2)[0][0] == p.index


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
        list(make(model).stream(photos)),
        list(make(model).predict_many(iter(paths))),
    ):
        assert [p.label for p in got] == [p.label for p in want]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=0)


def test_stream_is_lazy(model, photos):
    clf = make(model)
    stream = clf.stream(photos)
    assert clf.method.prior is None
    next(stream)
    assert clf.method.prior.seen == 1


def test_seed_decides_the_views(model, photos):
    a, b, c = (make(model, seed=s).predict(photos / "00.png").entropy for s in (0, 0, 1))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(a, c)
    torch.testing.assert_close(a[0], c[0])  # the base view has no chance in it


def test_learn_and_freeze(model, photos):
    clf = make(model)
    clf.learn(photos / "00.png")
    assert clf.method.prior.seen == 1
    clf.freeze()
    clf.predict(photos / "01.png")
    assert clf.method.prior.seen == 1
    with pytest.raises(InputError, match="frozen"):
        clf.learn(photos / "01.png")
    clf.unfreeze().predict(photos / "01.png")
    assert clf.method.prior.seen == 2
    clf.reset()
    assert clf.method.prior is None


@pytest.mark.parametrize("method", ["adte", "adte-paper", "adte-released", "se"])
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


def test_load_keeps_views_and_frozen(model, tmp_path):
    clf = make(model, views=Views(count=5, scale=(0.3, 0.9), seed=7), ratio=0.5).freeze()
    twin = Classifier.load(clf.save(tmp_path / "x.adte"), model=model)
    assert twin.frozen
    assert twin.views == clf.views


def test_state_of_something_else_is_refused(model, photos, tmp_path):
    clf = make(model)
    clf.predict(photos / "00.png")
    file = clf.save(tmp_path / "a.adte")
    other = Classifier(model, ["cat", "dog", "bus", "tree"], views=8)
    with pytest.raises(StateError, match="class 2 is 'car' there and 'bus' here"):
        other.load_state(file)
    with pytest.raises(StateError, match="4 classes there, 2 here"):
        Classifier(model, CLASSES[:2], views=8).load_state(file)
    with pytest.raises(StateError, match="saved with method 'adte'"):
        make(model, method="se").load_state(file)
    with pytest.raises(StateError, match="saved with model 'small'"):
        Classifier.load(file, model=SmallModel(name="other"))
    fresh = make(model)
    fresh.load_state(file)
    assert fresh.method.prior.seen == 1


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
    monkeypatch.setattr("adte.state.FORMAT", 99)
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

    monkeypatch.setattr("pathlib.Path.write_bytes", full_disk)
    with pytest.raises((InputError, StateError), match="the disk is full"):
        clf.save(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.adte"]
    with pytest.raises(InputError, match="does not exist"):
        clf.save(tmp_path / "no" / "a.adte")


def test_merge_of_two_workers(model, photos):
    paths = sorted(photos.iterdir())
    whole, left, right = make(model), make(model), make(model)
    for path in paths:
        whole.learn(path)
    for path in paths[:5]:
        left.learn(path)
    for path in paths[5:]:
        right.learn(path)
    left.merge(right)
    torch.testing.assert_close(left.method.prior.matrix, whole.method.prior.matrix)
    with pytest.raises(StateError, match="different classes"):
        left.merge(Classifier(model, ["a", "b"], views=8))


def test_bad_input_names_the_mend(model, photos, tmp_path):
    with pytest.raises(InputError, match="no class names"):
        Classifier(model, [])
    with pytest.raises(InputError, match="one text"):
        Classifier(model, "cat")
    with pytest.raises(InputError, match="number 1 is empty"):
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
    assert clf.method.prior is None
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="holds no image"):
        list(clf.stream(empty))


def test_a_bad_image_in_a_stream_loses_nothing(model, photos, tmp_path):
    clf = make(model)
    (tmp_path / "bad.jpg").write_text("no")
    with pytest.raises(InputError, match=r"bad\.jpg"):
        list(clf.stream([photos / "00.png", tmp_path / "bad.jpg", photos / "01.png"]))
    assert clf.method.prior.seen == 1
