"""Replaying a cache is the live run, image by image, for every method that features suffice for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from adte import Views, create_method, list_methods
from adte.cli import main
from adte.data import Dataset, make_stream
from adte.evaluate import predictions
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.running.results import Results
from adte.files.states import load_state
from adte.methods import Method, Prediction, method_info
from adte.models.prompts import class_weights
from adte.testing import SmallModel

NAMES = ("cat", "golden retriever", "car", "oak tree", "bus")
REPLAYABLE = [
    name for name in list_methods() if not method_info(name).cls.needs & {"image tower", "pixels"}
]


@pytest.fixture(scope="module")
def live() -> Live:
    rng, model = np.random.default_rng(0), SmallModel()
    coarse = rng.integers(0, 256, (14, 3, 4, 3), dtype=np.uint8)
    pictures = Dataset(
        name="pictures",
        classes=NAMES,
        class_ids=NAMES,
        sources=[np.asarray(Image.fromarray(c).resize((30, 24))) for c in coarse],
        labels=np.arange(14) % 5,
        ids=[f"{i:03d}" for i in range(14)],
        split="made up",
    )
    return Live(
        model=model,
        class_weights=class_weights(model, NAMES),
        stream=make_stream(pictures, seed=3),
        views=Views(count=8),
    )


@pytest.fixture(scope="module")
def folder(live, tmp_path_factory):
    """A cache of three shards."""
    return extract(live, tmp_path_factory.mktemp("cache"), shard=5).folder


def outcome(method: Method, stream: FeatureStream, protocol: str) -> list[Prediction]:
    torch.manual_seed(0)  # a method's own draws must not hang on what ran before
    return list(predictions(method, [s for s, _ in stream], protocol))


@pytest.mark.parametrize("name", REPLAYABLE)
def test_the_same_predictions_image_by_image(name, live, folder):
    cache = Cache(folder, model=live.model)
    for protocol in ("online", "two-pass"):
        ours = outcome(create_method(name), live, protocol)
        again = outcome(create_method(name), cache, protocol)
        assert [i.id for i in live.images()] == [i.id for i in cache.images()]
        for a, b in zip(ours, again, strict=True):
            assert a.index == b.index
            torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=0)
            assert (a.kept is None) == (b.kept is None)
            assert a.kept is None or torch.equal(a.kept, b.kept)
        if not create_method(name).stateful:
            break


@pytest.mark.parametrize("name", ["se", "adte", "tda"])
def test_the_same_in_another_order(name, live, folder):
    """A shuffled cache reads at random places; it is the shuffled stream all the same."""
    order = np.random.default_rng(5).permutation(14)
    ours = outcome(create_method(name), live.ordered(order), "online")
    again = outcome(create_method(name), Cache(folder).ordered(order), "online")
    for a, b in zip(ours, again, strict=True):
        torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=0)


def test_there_is_something_to_compare():
    """Presets and prompt tuners are among them, tower tuners are not."""
    assert {"adte", "adte-released", "tilt", "tda", "frolic", "tpt"} <= set(REPLAYABLE)
    assert not {"memo", "tent"} & set(REPLAYABLE)


@pytest.mark.slow
def test_the_command_line_writes_the_same_predictions(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "pictures" / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        small.resize((40, 40)).save(path)
    (tmp_path / "pictures" / "cat" / "0.png").write_bytes(b"no image")

    def call(*args: object) -> None:
        result = CliRunner().invoke(main, [str(a) for a in args])
        assert result.exit_code == 0, result.output

    source = ("--data", f"folder:{tmp_path / 'pictures'}", "--views", 6, "--workers", 0)
    call("extract", *source, "--out", tmp_path / "cache")
    for method in ("zero-shot", "adte", "tda"):
        one, two = (tmp_path / method / side for side in ("live", "replay"))
        call("eval", *source, "--method", method, "--runs", one)
        call("replay", tmp_path / "cache", "--method", method, "--runs", two)
        (a,), (b,) = Results(one), Results(two)
        wanted = load_state(one / f"{a.key}.safetensors")[0]
        found = load_state(two / f"{b.key}.safetensors")[0]
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            assert len(tensor) == 11 or name == "about"  # which holds the images' names
            assert torch.equal(tensor, found[name]), name
        for record in (a, b):
            for volatile in ("images_per_s", "seconds", "peak_memory"):
                record.metrics.pop(volatile, None)
        assert a.metrics == b.metrics
        assert json.loads(json.dumps(a.conditions.views)) == b.conditions.views
