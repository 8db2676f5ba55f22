"""A person's own features, from arrays and from a file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from adte import InputError, Sample, compare, create_method
from adte.evaluate import from_arrays, from_npz, run
from adte.evaluate.features.cache import Cache
from adte.evaluate.running.tasks import Task, key_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def arrays():
    """Noisy copies of their class weights: (N, V, D), (L, D), (N,)."""
    rng = np.random.default_rng(0)
    weights, labels = rng.normal(size=(4, 16)), rng.integers(0, 4, 30)
    return weights[labels][:, None] + rng.normal(size=(30, 3, 16)), 7 * weights, labels


def test_it_is_the_cache_that_it_was_made_from():
    """Features of the bundle, taken out and given back, bring the same figures."""
    cache = Cache().first(12)
    features = torch.stack([i.features for i in cache.images()])
    stream = from_arrays(
        features, cache.class_weights, cache.labels, cache.classes, cache.recipe.scale,
        bias=cache.recipe.bias, order="listed",
    )  # fmt: skip
    assert stream.class_weights.shape == cache.class_weights.shape
    for method in ("zero-shot", "adte"):
        ours, theirs = (run(create_method(method), s) for s in (stream, cache))
        assert ours.predicted.tolist() == theirs.predicted.tolist()
        assert ours.truth == pytest.approx(theirs.truth, abs=2e-3)


def test_what_makes_another_run(arrays, tmp_path):
    x, weights, labels = arrays
    made = [(x, weights, labels), (x + 1, weights, labels), (x, weights + 1, labels),
            (x, weights, labels[::-1]), (x, weights, labels)]  # fmt: skip
    assert len({key_of(from_arrays(*given), Task("se")) for given in made}) == 4
    named = [from_arrays(*arrays, ids=[f"{n} {i}" for i in range(30)]) for n in "ab"]
    assert len({key_of(stream, Task("se")) for stream in named}) == 2
    path = tmp_path / "x.npz"
    np.savez(path, image=x, text=weights, label=labels, domains=["clean"] * 20 + ["fog"] * 10)
    with pytest.raises(InputError, match="limit=20 leaves no image of fog; give a larger one"):
        compare(f"npz:{path}", "se", limit=20)
    assert compare(f"npz:{path}", "se", limit=21).domains == {"clean": 20, "fog": 1}
    for data in ([(Sample(torch.randn(2, 3)), 0)], np.ones((2, 3)), 3, {"folder": "x"}):
        with pytest.raises(InputError, match=r"adte\.evaluate\.from_arrays"):
            compare(data, "se")


def test_views_shuffles_names_and_domains(arrays):
    x, weights, labels = arrays
    one = from_arrays(x[:, 0].astype(np.float16), weights, labels)
    assert {tuple(i.features.shape) for i in one.images()} == {(1, 16)}
    assert one.classes[1] == "class 1"
    torch.testing.assert_close(one.class_weights.norm(dim=1), torch.ones(4))
    names = ["a", "b", "c", "d"]
    domains = ["clean"] * 10 + ["fog"] * 20
    stream = from_arrays(x.tolist(), torch.tensor(weights, dtype=torch.bfloat16), labels, names,
                         domains=domains)  # fmt: skip
    assert sorted(i.id for i in stream.shuffled(3).images()) == sorted(map(str, range(30)))
    table = compare(stream, ["zero-shot", "adte"], seeds=2)
    assert table.domains == {"clean": 10, "fog": 20}
    for row in table:
        of = row["by_domain"]
        assert row["accuracy"] == pytest.approx((10 * of["clean"] + 20 * of["fog"]) / 30)
    lines = str(table).splitlines()
    assert ["domain", "images", "zero-shot", "adte"] in [line.split() for line in lines]
    assert "Accuracy by domain" in table._repr_html_()
    assert compare(one, "zero-shot").parts is None


def test_all_methods_that_features_suffice_for(arrays):
    stream = from_arrays(arrays[0][:3], arrays[1], arrays[2][:3])
    names = {row["method"] for row in compare(stream)}
    assert {"adte", "tda"} < names
    assert "tpt" not in names
    with pytest.raises(InputError, match="'tpt' needs the text tower, and these are features"):
        compare(stream, "tpt")


def test_a_file(arrays, tmp_path):
    x, weights, labels = arrays
    path = tmp_path / "mine.npz"
    np.savez(path, image=x, text=weights, label=labels.astype(np.int16), names=list("abcd"),
             scale=50.0, shown=[1])  # fmt: skip
    stream = from_npz(path)
    assert (stream.recipe.scale, stream.classes[0], stream.recipe.views.count) == (50, "a", 3)
    row, again = (compare(s, "se")[0] for s in (f"npz:{path}", stream))
    assert row["nll"] == again["nll"]
    assert len(compare(f"npz:{path}", ["se", "adte"], limit=5).records) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((3, 2))}, "row 0 of the image features has no direction"),
        ({"image": np.full((3, 2), np.nan)}, "zero, infinite or nan"),
        ({"image": np.ones(3)}, r"have the shape \(3,\) .* give numbers, \(N, D\) or"),
        ({"image": np.array([["a"]])}, "type <U1; give numbers"),
        ({"text": np.ones((2, 4))}, r"class weights of shape \(2, 4\) .* give \(L, 2\), a row per"),
        ({"text": np.ones((1, 2, 2))}, "a row per class"),
        ({"label": np.array([0, 1])}, r"labels of shape \(2,\) .* do not fit 3 images"),
        ({"label": np.array([0.0, 1, 1])}, "a whole number for each"),
        ({"label": np.array([0, 1, 2])}, "label 2 has no class; labels must lie in 0…1"),
        ({"names": np.array(["a"])}, "1 class names for 2 class weights"),
        ({"names": np.array(["a", "b"], object)}, r"Object arrays cannot be loaded.*dtype=str\)"),
        ({"domains": np.array(["a"])}, "1 domains for 3 images"),
        ({"scale": np.array(-1.0)}, "scale above 0"),
        (
            {"scale": np.array([1.0, 2.0])},
            r"in '.*x.npz': scale=array.* is no number; give a single",
        ),
        ({"image": None}, "no entry 'image'; it has text, label"),
    ],
)
def test_bad_files_are_named(change, message, tmp_path):
    good = {"image": np.ones((3, 2)), "text": np.ones((2, 2)), "label": np.array([0, 1, 1])}
    given = {k: v for k, v in {**good, **change}.items() if v is not None}
    np.savez(tmp_path / "x.npz", **given)
    with pytest.raises(InputError, match=message) as error:
        from_npz(tmp_path / "x.npz")
    assert re.search(r"x\.npz", str(error.value))


def test_a_scale_that_is_a_logarithm_is_told(arrays):
    """Figures of features that were not sharpened look like figures."""
    with pytest.warns(UserWarning, match=r"scale=4.605 looks like the logarithm of CLIP's 100"):
        from_arrays(*arrays, scale=torch.tensor(100.0).log())


def test_what_is_no_such_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        from_npz(tmp_path / "gone.npz")
    (tmp_path / "text.npz").write_text("no array")
    with pytest.raises(InputError, match=r"cannot read features from .* give an \.npz with image"):
        from_npz(tmp_path / "text.npz")
    (tmp_path / "empty.npz").write_text("")
    with pytest.raises(InputError, match="cannot read features"):
        from_npz(tmp_path / "empty.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(InputError, match="it is one array without a name"):
        from_npz(tmp_path / "one.npy")
    np.savez(tmp_path / "object.npz", image=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"object.npz' .Object arrays cannot be loaded"):
        from_npz(tmp_path / "object.npz")


def test_real_features():
    path = SHARED / "clip-vit-b32-pets-imagenet-dev.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    with pytest.warns(UserWarning, match="'missile' occurs more than once"):  # in ImageNet
        (row,) = compare(f"npz:{path}", "zero-shot")
    assert row["accuracy"] == pytest.approx(0.65, abs=0.01)  # what its README says


@pytest.mark.parametrize("domains", [None, ["one"] * 20 + ["two"] * 20])
def test_an_image_that_comes_twice_is_paired_in_any_order(domains):
    """Where domains follow each other, other orders were taken for plain shuffles."""
    rng = np.random.default_rng(0)
    weights, labels = rng.normal(size=(3, 8)), rng.integers(0, 3, 40)
    features = weights[labels] + rng.normal(size=(40, 8)) * 2
    names = ["a", "a", *map(str, range(38))]
    stream = from_arrays(features, weights, labels, ids=names, domains=domains)
    rows = list(compare(stream, ["se", "adte"], seeds=2))
    assert rows[1]["gain_ci95"] is not None
    assert rows[1]["gain"] == pytest.approx(rows[1]["accuracy"] - rows[0]["accuracy"])


@pytest.mark.parametrize("at", [30, 60, 200])
def test_a_damaged_file_is_named(at, arrays, tmp_path):
    """What zlib and NumPy's own reader raise came out as it was."""
    path = tmp_path / "odd.npz"
    np.savez_compressed(path, image=np.zeros((60, 64), "f4"), text=np.eye(5, 64), label=[0] * 60)
    data = bytearray(path.read_bytes())
    data[at : at + 10] = b"\xff" * 10
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"odd\.npz"):
        from_npz(path)
