"""Threads: chosen by the size of the work, or asked for; torch's own number stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from adte import Classifier, InputError, Pipeline, Views
from adte.cluster.worker import Encoder, Tower, Work
from adte.core.loading import Loading
from adte.models import load_model
from adte.models.tiny import Tiny
from adte.testing import SmallModel
from predicting import call, picture

MOST = 4


@pytest.fixture(autouse=True)
def several(monkeypatch):
    """A process that may use four threads, by nobody's wish."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ADTE_MODEL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(MOST)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch):
    """The numbers of threads that the image tower of `tiny` ran on."""
    numbers, real = [], Tiny.encode_image

    def encode_image(self, pixels):
        numbers.append(torch.get_num_threads())
        return real(self, pixels)

    monkeypatch.setattr(Tiny, "encode_image", encode_image)
    return numbers


def at_work(model, inputs):
    with model.at_work(inputs):
        return torch.get_num_threads()


def large(parameters: int):
    model = SmallModel().eval()
    model.more = nn.Parameter(torch.empty(parameters), requires_grad=False)  # is never touched
    return model


def test_small_work_has_one_thread_and_large_work_all():
    tiny, base = load_model("tiny"), large(150_000_000)
    assert [at_work(tiny, views) for views in (1, 4, 16, 64)] == [1, 1, 1, 3]
    assert [at_work(base, views) for views in (1, 2, 8, 64)] == [1, 2, MOST, MOST]
    assert torch.get_num_threads() == MOST


def test_what_was_asked_for_wins_over_the_environment_and_that_over_the_size(monkeypatch):
    model = load_model("tiny")
    monkeypatch.setenv("OMP_NUM_THREADS", str(MOST))  # torch has read it when it was loaded
    assert at_work(model, 1) == MOST
    model.threads = 2
    assert at_work(model, 1) == 2
    assert at_work(load_model("tiny", threads=3), 64) == 3


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", 5000])
def test_a_number_that_cannot_be_is_refused(bad):
    with pytest.raises(InputError, match=r"threads=.* give"):
        load_model("tiny", threads=bad)


def test_torch_has_the_threads_it_had_after_and_between_images(seen):
    images = [np.full((40, 60, 3), i, np.uint8) for i in (10, 90)]
    clf = Classifier("tiny", ["cat", "dog"], views=2)
    assert clf.predict(images[0]).label
    assert torch.get_num_threads() == MOST
    for _ in clf.stream(images):
        assert torch.get_num_threads() == MOST
    with pytest.raises(InputError):
        clf.predict(b"no image")
    assert torch.get_num_threads() == MOST
    assert set(seen) == {1}


def test_option_before_config_file_before_environment(tmp_path, monkeypatch, seen):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    image, asked = picture(tmp_path / "a.png"), ("--classes", "cat, dog", "--views", "2")

    def numbers(*more):
        seen.clear()
        done = call("predict", image, *asked, "--model", "tiny", *more)
        assert done.exit_code == 0, done.output
        return set(seen)

    assert numbers() == {1}
    (tmp_path / "adte.toml").write_text("[defaults]\nthreads = 3\n", encoding="utf-8")
    monkeypatch.setenv("OMP_NUM_THREADS", str(MOST))
    assert numbers() == {3}
    assert numbers("--threads", 2) == {2}
    (tmp_path / "adte.toml").unlink()
    assert numbers() == {MOST}
    done = call("predict", image, *asked, "--threads", "0")
    assert (done.exit_code, "threads=0" in done.output) == (2, True)


@pytest.mark.parametrize("verb", ["predict", "learn", "calibrate", "eval", "compare", "sweep",
                                  "extract", "serve", "study", "paper"])  # fmt: skip
def test_every_verb_that_loads_a_model_takes_the_option(verb):
    assert "--threads" in call(verb, "--help").output


# ------------------------------------------------------------------ one thread, and several


def places(x: torch.Tensor) -> torch.Tensor:
    """float16 numbers by their place in the order of all of them."""
    bits = x.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def test_a_worker_of_one_thread_and_this_process_agree_to_the_last_bit(shared_data):
    """With as many threads the bytes are the same; with more, each number is at most the next."""
    paths = sorted((shared_data / "cifar10-test").rglob("*.jpg"))[::100]
    model, views = load_model("tiny"), Views(count=12)
    work = Work(Tower.of(model, Loading()), views, model.preprocess)
    far = torch.from_numpy(Encoder(work).encode([*enumerate(paths)]).features)
    torch.set_num_threads(MOST)  # the worker set its own

    def near(threads):
        model.threads = threads
        return torch.stack([e.features for e in Pipeline(model, views)(enumerate(paths))])

    assert torch.equal(near(1), far)
    assert torch.equal(near(None), far)  # small work: one thread by default
    assert (places(near(2)) - places(far)).abs().max() <= 1
