"""Streams: reproducible orders that carry labels and domains."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from adte.core.errors import InputError
from adte.core.options import describe
from adte.data import Dataset, Stream, StreamOptions, load_dataset, make_stream
from adte.data.corrupted import corrupted, corruption_list, severity_list
from adte.data.streams import SAMPLE, another_order, other_images
from adte.images.decode import load_image


def dataset(name: str = "a", classes: int = 5, each: int = 20, ids: tuple[str, ...] | None = None,
            domains: list[str] | None = None) -> Dataset:  # fmt: skip
    labels = np.repeat(np.arange(classes), each)
    names = [f"{y}/{k}.jpg" for y in range(classes) for k in range(each)]
    ids = ids or tuple(f"c{i}" for i in range(classes))
    return Dataset.of_files(name, Path("x"), zip(names, labels, strict=True), classes=ids,
                            class_ids=ids, domains=domains)  # fmt: skip


def keys(stream: Stream) -> list[tuple[str, str]]:
    return [(e.domain, e.id) for e in stream]


def changes(stream: Stream) -> int:
    return int((np.diff(stream.labels) != 0).sum())


ORDERS = ["listed", "shuffled", "class-ordered", "correlated"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("domains", ["sequence", "mixed"])
def test_a_stream_is_a_reproducible_permutation(order: str, domains: str) -> None:
    sets = [dataset("a"), dataset("b", each=7)]
    one = make_stream(sets, order=order, domains=domains, seed=4)
    two = make_stream([dataset("a"), dataset("b", each=7)], order=order, domains=domains, seed=4)
    assert keys(one) == keys(two)  # from the parameters alone
    assert keys(one) == [(e.domain, e.id) for e in one]  # and at every pass
    assert sorted(keys(one)) == sorted((d.name, e.id) for d in sets for e in d)
    assert one.describe() == two.describe()
    assert one.labels.tolist() == [e.label for e in one]
    assert one.domains == [e.domain for e in one]
    assert keys(pickle.loads(pickle.dumps(one))) == keys(one)
    other = make_stream(sets, order=order, domains=domains, seed=5)
    if order in ("shuffled", "correlated") or domains == "mixed":
        assert keys(other) != keys(one)
        assert other.describe()["digest"] != one.describe()["digest"]


def test_orders_differ_in_their_runs() -> None:
    data = dataset(classes=20, each=50)
    runs = {o: changes(make_stream(data, order=o)) for o in ("shuffled", "class-ordered")}
    assert runs["class-ordered"] == 19
    assert runs["shuffled"] > 900
    tight, loose = (changes(make_stream(data, order="correlated", delta=d)) for d in (0.01, 10.0))
    assert 19 <= tight < 100 < loose < runs["shuffled"]
    many = dataset(classes=100, each=10)  # a class whose chunks are full was spread over all others
    assert changes(make_stream(many, order="correlated", delta=1e-9)) == 99
    labels = make_stream(dataset(classes=10, each=100), order="correlated", delta=0.1).labels
    share = [len(np.unique(labels[i : i + 100])) for i in range(0, 1000, 100)]
    assert np.mean(share) < 6  # of ten classes, a tenth of the stream sees few


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.floats(1e-4, 10), st.integers(0, 99))
def test_correlated_order_is_a_permutation(
    classes: int, each: int, delta: float, seed: int
) -> None:
    data = dataset(classes=classes, each=each)
    stream = make_stream(data, order="correlated", delta=delta, seed=seed)
    assert sorted(e.id for e in stream) == sorted(data.ids)


def test_exponential_and_zipf_imbalance() -> None:
    data = dataset(classes=5, each=80)
    for kind, want in (
        ("exponential", [80 * 16 ** (-k / 4) for k in range(5)]),
        ("zipf", [80 * (k + 1) ** (-np.log(16) / np.log(5)) for k in range(5)]),
    ):
        stream = make_stream(data, imbalance=kind, ratio=16, seed=2)
        counts = sorted(np.bincount(stream.labels).tolist(), reverse=True)
        assert counts == [round(w) for w in want]
        assert counts[0] == 16 * counts[-1]
    orders = {
        tuple(np.bincount(make_stream(data, imbalance="zipf", seed=s).labels)) for s in range(6)
    }
    assert len(orders) > 1  # which class is frequent is drawn
    assert len(make_stream(data, imbalance="exponential", ratio=1)) == len(data)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("domains", ["sequence", "mixed"])
def test_another_order_is_one_of_the_same_kind(order: str, domains: str) -> None:
    one = make_stream([dataset("a"), dataset("b", each=7)], order=order, domains=domains)
    found, again = (another_order(one.describe(), one.labels, lambda: one.domains, 3) for _ in "ab")
    np.testing.assert_array_equal(found, again)
    plain = another_order({}, one.labels, lambda: [""] * len(one), 3)  # nothing is known of theirs
    np.testing.assert_array_equal(plain, np.random.default_rng(3).permutation(len(one)))
    assert sorted(found.tolist()) == list(range(len(one)))
    assert found.tolist() != list(range(len(one)))
    if domains == "sequence":
        assert [one.domains[i] for i in found] == one.domains
        runs = int((np.diff(one.labels[found]) != 0).sum())
        if order in ("class-ordered", "correlated"):
            assert runs <= 2 * changes(one)
        else:
            assert runs > 60


def test_mixed_is_interleaved() -> None:
    stream = make_stream([dataset("a"), dataset("b"), dataset("c")], domains="mixed")
    turns = sum(x != y for x, y in zip(stream.domains, stream.domains[1:], strict=False))
    assert turns > 150  # of 299
    assert stream.describe()["domain_counts"] == {"a": 100, "b": 100, "c": 100}
    sequence = make_stream([dataset("a"), dataset("b")])
    assert sequence.domains == ["a"] * 100 + ["b"] * 100
    alone = make_stream([dataset("a")])  # a domain's order does not depend on the others
    assert [e.id for e in alone] == [e.id for e in stream if e.domain == "a"]


def test_label_spaces() -> None:
    whole = dataset("imagenet", classes=6)
    part = dataset("imagenet-a", classes=2, ids=("c4", "c1"))
    own = make_stream([whole, part], domains="mixed")
    assert own.classes is None
    assert {e.label for e in own if e.domain == "imagenet-a"} == {0, 1}
    shared = make_stream([whole, part], domains="mixed", labels="shared")
    assert shared.classes == whole.classes
    assert shared.class_ids == whole.class_ids
    for e in shared:
        folder = int(e.id.split("/")[0])
        assert e.label == (folder if e.domain == "imagenet" else {0: 4, 1: 1}[folder])
    assert shared.labels.tolist() == [e.label for e in shared]


def test_gradual_severity_goes_up_and_down() -> None:
    levels = [f"{t}/{s}" for t in ("fog", "snow") for s in (3, 1, 2)]
    data = dataset(classes=2, each=30, domains=[x for x in levels for _ in range(10)])
    stream = make_stream(data, domains="gradual")
    steps = (1, 2, 3, 2, 1)
    assert stream.domains[::10] == [f"{t}/{s}" for t in ("fog", "snow") for s in steps]
    with pytest.raises(InputError, match="domain 'a' has no severity"):
        make_stream(dataset(), domains="gradual")


def test_names_for_domains_and_limit() -> None:
    with pytest.raises(InputError, match="two data sets have the domain 'a'"):
        make_stream([dataset("a"), dataset("a")])
    stream = make_stream({"clean": dataset("a"), "odd": dataset("a")}, domains="mixed", limit=30)
    assert len(stream) == 30
    assert set(stream.domains) == {"clean", "odd"}
    assert [e.id for e in stream[3:5]] == [stream[3].id, stream[4].id]
    with pytest.raises(IndexError):
        stream[30]
    assert stream[-1] == stream[29]


@pytest.mark.parametrize("domains", ["sequence", "mixed"])
def test_a_limit_that_leaves_a_domain_out_is_refused(domains: str) -> None:
    """With --corrupt fog, the clean images alone were looked at."""
    sets = {"clean": dataset("a"), "fog/5": dataset("a"), "fog/3": dataset("a")}
    with pytest.raises(InputError, match=r"limit=1 leaves no image of .*fog/3.* that mixes"):
        make_stream(sets, domains=domains, limit=1)
    if domains == "sequence":
        with pytest.raises(InputError, match=r"limit=150 leaves no image of fog/3; give a larger"):
            make_stream(sets, domains=domains, limit=150)
    assert len(make_stream(sets, domains=domains, limit=250)) == 250
    assert len(make_stream(dataset("a"), limit=1)) == 1


def test_content_tells_images_of_the_same_names_apart(tmp_path: Path) -> None:
    """However they are stored, and wherever; what cannot be read says nothing."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(10)]
    files = []
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(path := tmp_path / f"{i}.png")
        files.append(path)

    def content(sources: list[Any], **options: Any) -> tuple[str, ...]:
        data = replace(dataset("a", each=2), sources=sources)
        return make_stream([data, corrupted(data, "fog")], **options).content

    data = [path.read_bytes() for path in files]
    known = content(files)
    assert len(set(known)) == SAMPLE
    assert all(known)
    assert known == content(data) == content([partial(path.read_bytes) for path in files])
    assert known == content(files, order="listed", seed=3, domains="mixed", limit=7)
    assert other_images(known, content(data[::-1]))
    assert other_images(content(pixels), content([image // 2 for image in pixels]))
    files[0].write_bytes(data[0][:60])
    files[-1].unlink()
    assert content(files) == ("", *known[1:-1], "")
    assert not other_images(known, content(files))


def test_the_description_is_json_and_options_explain_themselves() -> None:
    facts = make_stream(dataset(), order="correlated", seed=9).describe()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["seed"], facts["order"], facts["images"]) == (9, "correlated", 100)
    assert {o["name"] for o in describe(StreamOptions)} == set(StreamOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"order": "random"}, "unknown order of a stream 'random'"),
        ({"ordre": "listed"}, "unknown option of a stream 'ordre'"),
        ({"delta": 0.0}, "delta=0.0 of a stream must be positive"),
        ({"ratio": 0.5}, "ratio=0.5 of a stream must be at least 1"),
        ({"limit": 0}, "limit=0 of a stream must be at least 1"),
        ({"seed": -1}, "seed=-1 of a stream must be at least 0"),
        ({"domains": "x"}, "unknown domains of a stream 'x'"),
    ],
)
def test_bad_options(bad: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_stream(dataset(), **bad)
    with pytest.raises(InputError, match="at least one data set"):
        make_stream([])


def test_lists_of_corruptions_and_severities() -> None:
    assert (len(corruption_list("common")), len(corruption_list("all"))) == (15, 19)
    assert corruption_list(["elastic", "fog", "fog"]) == ("elastic_transform", "fog")
    assert severity_list([1, 5]) == (1, 5)
    for bad in ("0", "1-6", "x", "1-", "1,5-3", "5-1", [], None):
        with pytest.raises(InputError, match="severity="):
            severity_list(bad)  # type: ignore[arg-type]


def test_corrupted_on_the_fly(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, [f"{c}/{k}.jpg" for c in ("cat", "dog") for k in range(3)])
    torn = tmp_path / "cat/1.jpg"
    torn.unlink()
    torn.write_bytes(b"\xff\xd8 torn")
    data = load_dataset(f"folder:{tmp_path}")
    foggy = corrupted(data, "gaussian-noise", 3, seed=5)
    assert (foggy.classes, foggy[0].domain) == (data.classes, "gaussian_noise/3")
    assert "generated with seed 5" in foggy.split
    assert foggy[0].source.shape == (6, 8, 3)
    same, other = (corrupted(data, "gaussian_noise", 3, seed)[0].source for seed in (5, 6))
    assert (foggy[0].source == same).all()
    assert (foggy[0].source != other).any()
    stream = make_stream([data, foggy], domains="mixed")
    places = [i for i in range(len(stream)) if stream.identify(i)[0] == "cat/1.jpg"]
    assert {stream.identify(i)[1] for i in places} == {data.name, "gaussian_noise/3"}
    for i in places:  # torn, and read when it is asked for
        with pytest.raises(InputError, match="cannot read"):
            load_image(stream[i].source)
