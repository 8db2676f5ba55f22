"""The view-feature cache: the same numbers as live, whole shards, resumable."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from adte import InputError, StateError, Views, create_method
from adte.data import Dataset, make_stream
from adte.evaluate import run
from adte.evaluate.cache import Cache, extract
from adte.evaluate.features import Live
from adte.prompts import class_weights
from small_model import SmallModel

NAMES = ("cat", "dog", "car")


def pictures(count: int = 11) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(
        name="pictures",
        classes=NAMES,
        class_ids=("a", "b", "c"),
        sources=[rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for _ in range(count)],
        labels=np.arange(count) % 3,
        ids=[f"{i:03d}" for i in range(count)],
        split="made up",
    )


def live(count: int = 11, views: int = 5, **options) -> Live:
    model = SmallModel()
    return Live(
        model=model,
        class_weights=class_weights(model, NAMES),
        stream=make_stream(pictures(count), order="file"),
        views=Views(count=views),
        **options,
    )


@pytest.mark.parametrize("name", ["zero-shot", "se", "zero", "adte", "adte-paper"])
def test_replay_equals_live_image_by_image(name, tmp_path):
    extract(live(), tmp_path / "c", shard=4)
    for protocol in ("online", "two-pass"):
        a = run(create_method(name), live(), protocol)
        b = run(create_method(name), Cache(tmp_path / "c"), protocol)
        assert a.predicted.tolist() == b.predicted.tolist()
        assert a.labels.tolist() == b.labels.tolist()
        np.testing.assert_array_equal(a.confidence, b.confidence)


def test_workers_make_the_same_features():
    one = [e.features for e in live(4).encoded()]
    two = [e.features for e in live(4, workers=2).encoded()]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_order_and_length(tmp_path):
    cache = extract(live(), tmp_path / "c", shard=4)
    assert len(cache) == 11
    assert len(list((tmp_path / "c").glob("shard-*"))) == 3
    order = np.array([10, 0, 5, 3])
    some = list(cache.ordered(order).encoded())
    every = list(cache.encoded())
    for e, i in zip(some, order, strict=True):
        assert e.id == every[i].id == f"{i:03d}"
        assert torch.equal(e.features, every[i].features)
    assert cache.ordered(order).labels.tolist() == [e.label for e in some]
    assert [e.id for e in cache.ordered(order).first(2).encoded()] == ["010", "000"]
    assert cache.ordered(order).at(1)[1] == every[0].label
    with pytest.raises(InputError, match="limit=0"):
        cache.first(0)


class Stop(Exception):
    pass


def test_resume_repeats_no_finished_shard(tmp_path):
    whole = extract(live(), tmp_path / "whole", shard=4)
    done = 0

    def stop_at_six(images: int) -> None:
        nonlocal done
        done += images
        if done == 6:
            raise Stop

    with pytest.raises(Stop):
        extract(live(), tmp_path / "part", shard=4, tick=stop_at_six)
    assert [p.name for p in sorted((tmp_path / "part").glob("shard-*"))] == [
        "shard-00000.safetensors"
    ]
    with pytest.raises(StateError, match="1 of 3 shards"):
        Cache(tmp_path / "part")
    stamp = (tmp_path / "part" / "shard-00000.safetensors").stat().st_mtime_ns
    extract(live(), tmp_path / "part", shard=4)
    assert (tmp_path / "part" / "shard-00000.safetensors").stat().st_mtime_ns == stamp
    for a, b in zip(whole.encoded(), Cache(tmp_path / "part").encoded(), strict=True):
        assert a.id == b.id
        assert torch.equal(a.features, b.features)


def test_killed_at_random_points_it_ends_up_the_same(tmp_path):
    """kill -9 of a real process, several times, then one run to the end."""
    script = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from test_cache import live; from adte.evaluate.cache import extract\n"
        "print('up', flush=True); extract(live(40, views=24), sys.argv[3], shard=3)\n"
    )
    here = Path(__file__).parent
    folder = tmp_path / "killed"
    rng = random.Random(0)
    for _ in range(4):
        p = subprocess.Popen(
            [sys.executable, "-c", script, str(here), str(here.parent), str(folder)],
            stdout=subprocess.PIPE,
        )
        assert p.stdout is not None
        p.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        os.kill(p.pid, signal.SIGKILL)
        p.wait()
        p.stdout.close()
    extract(live(40, views=24), folder, shard=3)
    want = extract(live(40, views=24), tmp_path / "whole", shard=3)
    got = Cache(folder)
    assert len(got) == len(want) == 40
    for a, b in zip(want.encoded(), got.encoded(), strict=True):
        assert a.id == b.id
        assert torch.equal(a.features, b.features)


def test_damaged_and_altered_shards_are_named(tmp_path):
    extract(live(), tmp_path / "c", shard=4)
    path = tmp_path / "c" / "shard-00001.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    with pytest.raises(StateError, match=r"shard-00001.*run extract again"):
        list(Cache(tmp_path / "c").encoded())
    altered = bytearray(data)
    altered[-200] ^= 1
    path.write_bytes(bytes(altered))
    with pytest.raises(StateError, match=r"shard-00001.*was altered"):
        list(Cache(tmp_path / "c").encoded())
    with pytest.raises(StateError, match="shard-00001"):
        extract(live(), tmp_path / "c", shard=4)
    path.unlink()
    extract(live(), tmp_path / "c", shard=4)
    assert path.read_bytes() == data


def test_another_recipe_is_refused_by_name(tmp_path):
    extract(live(), tmp_path / "c", shard=4)
    with pytest.raises(StateError, match="another views"):
        extract(live(views=6), tmp_path / "c", shard=4)
    with pytest.raises(StateError, match="another data"):
        extract(live(count=9), tmp_path / "c", shard=4)
    other = live()
    with torch.no_grad():
        other.model.project.weight.mul_(2)
    other = Live(other.model, other.class_weights, other.stream, other.views)
    with pytest.raises(StateError, match="another fingerprint"):
        extract(other, tmp_path / "c", shard=4)
    with pytest.raises(InputError, match="no prompt set 'cupl'"):
        Cache(tmp_path / "c", "cupl")
    with pytest.raises(InputError, match=r"no recipe\.json"):
        Cache(tmp_path)
    recipe = tmp_path / "c" / "recipe.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "format": 7}))
    with pytest.raises(StateError, match="format 7"):
        Cache(tmp_path / "c")


def test_several_prompt_sets_share_the_features(tmp_path):
    first = live()
    extract(first, tmp_path / "c", shard=4)
    weights = class_weights(first.model, NAMES, ["art of the {}."])
    second = Live(first.model, weights, first.stream, first.views)
    extract(second, tmp_path / "c", "art", shard=4)
    assert torch.equal(Cache(tmp_path / "c", "art").class_weights, weights)
    assert not torch.equal(Cache(tmp_path / "c").class_weights, weights)


def test_unreadable_images_are_counted_never_silent(tmp_path):
    broken = pictures(6)
    broken.sources[2] = b"not an image"
    model = SmallModel()
    broken = make_stream(broken, order="file")
    stream = Live(model, class_weights(model, NAMES), broken, Views(count=3))
    cache = extract(stream, tmp_path / "c", shard=4)
    assert len(cache) == 5
    assert [s.id for s in stream.skipped] == ["002"]
    strict = Live(model, stream.class_weights, broken, Views(count=3), strict=True)
    with pytest.raises(InputError):
        list(strict.encoded())
