"""The way of an image is one: predict, eval and extract + replay agree on every image."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import adte
from adte import Classifier, InputError, Pipeline, Views, create_method, list_methods
from adte.core.batch import Context
from adte.data import make_stream
from adte.data.registry import load_dataset
from adte.evaluate.features.cache import extract
from adte.evaluate.features.live import Live
from adte.evaluate.running.protocol import predictions
from adte.methods import method_info
from adte.models.prompts import class_weights
from adte.testing import SmallModel

ROOT = Path(adte.__file__).parent
REPLAYABLE = [n for n in list_methods() if not method_info(n).cls.needs & {"image tower", "pixels"}]


def picture(i: int, height: int = 40, width: int = 56) -> Image.Image:
    coarse = np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Labelled pictures of every kind that a folder may hold."""
    root = tmp_path_factory.mktemp("pictures")
    made: list[tuple[str, Image.Image, dict[str, object]]] = []
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    made.append(("turned.jpg", picture(0), {"exif": turned, "quality": 95}))
    made.append(("grey.png", picture(1).convert("L"), {}))
    made.append(("print.jpg", picture(2).convert("CMYK"), {"quality": 95}))
    clear = picture(3).convert("RGBA")
    clear.putalpha(Image.fromarray(np.full((40, 56), 90, np.uint8)))
    made.append(("clear.png", clear, {}))
    made.append(("palette.gif", picture(4).convert("P"), {}))
    deep = np.asarray(picture(5).convert("L")).astype(np.uint16) * 257
    made.append(("deep.png", Image.fromarray(deep), {}))
    made += [(f"plain{i}.jpg", picture(i), {}) for i in range(6, 10)]
    for i, (name, image, how) in enumerate(made):
        place = root / ("cat", "dog")[i % 2]
        place.mkdir(exist_ok=True)
        image.save(place / name, **how)
    return root


def live(folder: Path, **more: object) -> Live:
    model, data = SmallModel(), load_dataset(f"folder:{folder}")
    stream = make_stream(data, order="listed")
    views = Views(count=8)
    return Live(model, class_weights(model, data.classes), stream, views, **more)


@pytest.mark.parametrize("method", REPLAYABLE)
def test_predict_is_eval_is_extract_and_replay(method, folder, tmp_path):
    evaluated = live(folder)
    clf = Classifier(evaluated.model, list(evaluated.classes), method, views=Views(count=8))
    paths = [str(s.source) for s in evaluated.stream]
    one_by_one = [clf.predict(p) for p in paths]
    cache = extract(live(folder), tmp_path / "cache", shard=4)
    cache.model = evaluated.model
    for batch in (1, 3, 16):
        for stream in (evaluated, cache):
            samples = [s for s, _ in stream]
            said = predictions(create_method(method), samples, "online", batch)
            for mine, theirs in zip(one_by_one, said, strict=True):
                assert torch.equal(mine.probs, theirs.probs)
    clf.reset()
    streamed = list(clf.stream(paths, batch=4, workers=2))
    for mine, theirs, path in zip(one_by_one, streamed, paths, strict=True):
        assert torch.equal(mine.probs, theirs.probs)
        assert theirs.source == path


def test_an_unreadable_image_is_told_in_its_place(folder):
    model = SmallModel()
    pipeline = Pipeline(model, Views(count=4), workers=2)
    sources = [folder / "cat" / "turned.jpg", b"no image", picture(1), b"", picture(2)]
    bad: list[int] = []
    good = [e.key for e in pipeline(enumerate(sources), lambda key, error: bad.append(key))]
    assert (good, bad) == ([0, 2, 4], [1, 3])
    with pytest.raises(InputError, match="cannot read"):
        list(pipeline(enumerate(sources)))


def test_a_model_in_training_mode_is_refused_and_stays_so():
    model = SmallModel().train()
    with pytest.raises(InputError, match=r"model\.eval\(\)"):
        Classifier(model, ["cat", "dog"])
    assert model.training


def test_workers_and_groups_change_nothing(folder):
    model, paths = SmallModel(), sorted(folder.rglob("*.*"))
    plain = list(Pipeline(model, Views(count=6))(enumerate(paths)))
    for workers, group in ((1, 0), (3, 4)):
        pipeline = Pipeline(model, Views(count=6), workers=workers, group=group)
        for a, b in zip(plain, pipeline(enumerate(paths)), strict=True):
            assert a.key == b.key
            assert torch.equal(a.features, b.features)


def test_threads_that_begin_after_a_stream_compute_as_before(folder):
    def threads():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert threads() == 3
        paths = sorted(folder.rglob("*.png"))
        assert len(list(Pipeline(SmallModel(), Views(2), workers=2)(enumerate(paths)))) == 3
        assert threads() == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_views_that_are_the_same_are_encoded_once():
    model, seen = SmallModel(), []
    pipeline = Pipeline(model, Views(count=40))
    encode = model.encode_image
    model.encode_image = lambda pixels: (seen.append(len(pixels)), encode(pixels))[1]  # type: ignore[method-assign]
    small, large = picture(0, 11, 11), picture(1)  # below half of the model's 24 pixels, and not
    for image, most in ((small, 2), (large, 40)):  # the whole, as the base view is, and mirrored
        pixels = pipeline.pixels([pipeline.prepare(image)])
        found = pipeline.encode(pixels)[0]
        assert seen.pop() == most
        torch.testing.assert_close(found, encode(pixels[0]).half())
    pixels = torch.zeros(1, 5, 3, 24, 24)
    pixels[0, 3, 1, 7, 5] = 9.0  # few of the pixels are looked at first
    found = Pipeline(SmallModel()).encode(pixels)[0]
    assert torch.equal(found[0], found[4])
    assert not torch.equal(found[0], found[3])


def test_a_batch_of_logits_does_not_depend_on_company():
    g = torch.Generator().manual_seed(0)
    context = Context(torch.randn(300, 64, generator=g), 10.0)
    features = torch.randn(12, 8, 64, generator=g)
    whole = context.batch(features).logits
    for i in range(12):
        assert torch.equal(context.batch(features[i : i + 1]).logits[0], whole[i])


# Who may call what: the number of places that decode, crop or encode images.
CALLS = {"encode_image": {"pipeline/way.py"}, "base_view": {"images/drawing.py"}}
TOWERS = {"models/", "methods/image_tower.py", "testing/", "bench/"}  # themselves


@pytest.mark.slow
def test_nobody_else_encodes_or_crops():
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            func = getattr(node, "func", None)
            name = getattr(func, "attr", "") or getattr(func, "id", "")
            if isinstance(node, ast.Call) and name in CALLS and where not in CALLS[name]:
                assert any(where.startswith(t) for t in TOWERS), f"{where} calls {name}"


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("workers", [0, 3])
def test_what_came_before_an_error_is_done(batch, workers):
    """Of an image that cannot be read, and of who gives the images, however many go together."""
    rng = np.random.default_rng(0)
    good = [rng.integers(0, 256, (20, 20, 3), dtype=np.uint8) for _ in range(6)]

    def broken():
        yield from good
        raise RuntimeError("the camera is gone")

    for images, error in (([*good, "gone.png"], adte.InputError), (broken(), RuntimeError)):
        clf = adte.Classifier(SmallModel(), ["cat", "dog"], views=2)
        came = []
        with pytest.raises(error):
            came.extend(clf.stream(images, batch=batch, workers=workers))
        assert clf.seen == 6
