"""What every method must do, whatever its maths. Each check takes a registered name."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from adte import InputError, Sample, StateError, create_method
from adte.evaluate import predictions
from adte.prompts import class_weights
from small_model import SmallModel

CLASSES = ("cat", "golden retriever", "car", "oak tree", "bus", "cup of coffee", "fish")


@lru_cache
def world(count: int = 24, views: int = 9, classes: int = 7) -> tuple[Sample, ...]:
    """Samples with everything a method can ask for, from a small model and random pictures."""
    model, g = SmallModel(), torch.Generator().manual_seed(0)
    names = CLASSES[:classes]
    with torch.no_grad():
        weights = class_weights(model, names)
        out = []
        for _ in range(count):
            base = torch.randn(1, 3, 6, 6, generator=g)
            coarse = base + 0.6 * torch.randn(views, 3, 6, 6, generator=g)
            pixels = torch.nn.functional.interpolate(coarse, size=(24, 24), mode="bilinear")
            features = model.encode_image(pixels)
            logits = model.logits(features, weights)
            out.append(Sample(logits, features, weights, model.logit_scale, pixels, model, names))
    return tuple(out)


def samples(count: int = 24) -> list[Sample]:
    return list(world()[:count])


def permuted(sample: Sample, order: torch.Tensor) -> Sample:
    """The same image with the classes in another order."""
    names = [sample.classes[i] for i in order]
    return replace(
        sample,
        logits=sample.logits[:, order],
        class_weights=sample.class_weights[order],
        classes=names,
    )


def one_view(sample: Sample) -> Sample:
    return replace(
        sample, logits=sample.logits[:1], features=sample.features[:1], pixels=sample.pixels[:1]
    )


def same(a, b) -> None:
    assert a.index == b.index
    torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=0)


def check_contract(name: str) -> None:
    """Probabilities, indices, and what explains the decision."""
    method = create_method(name)
    assert method.name == name
    assert method.reference
    assert method.needs
    for sample in samples(12):
        p = method.step(sample)
        assert p.probs.shape == (7,)
        assert p.probs.sum().item() == pytest.approx(1, abs=1e-5)
        assert (p.probs >= 0).all()
        assert p.index == int(p.probs.argmax())
        assert p.entropy is None or torch.isfinite(p.entropy).all()
        assert p.kept is None or len(set(p.kept.tolist())) == len(p.kept) >= 1


def check_determinism(name: str) -> None:
    first, second = create_method(name), create_method(name)
    for sample in samples():
        same(first.step(sample), second.step(sample))


def check_predict_leaves_state(name: str) -> None:
    method = create_method(name)
    for sample in samples(12):
        method.step(sample)
    probe = samples(13)[12]
    before = {k: v.clone() for k, v in method.state_dict().items()}
    first = method.predict(probe)
    same(first, method.predict(probe))
    after = method.state_dict()
    # The solution of the prior may have been brought up to date; what was learned may not change.
    for key in before.keys() - {"prior.solution", "prior.fresh"}:
        torch.testing.assert_close(before[key], after[key], rtol=0, atol=0)


def check_clone(name: str) -> None:
    method = create_method(name)
    for sample in samples(12):
        method.step(sample)
    fresh = method.clone()
    assert fresh.name == method.name
    assert fresh.params == method.params
    assert not fresh.state_dict()
    same(fresh.step(samples(1)[0]), create_method(name).step(samples(1)[0]))


def check_reset(name: str) -> None:
    method = create_method(name)
    first = [method.step(s) for s in samples()]
    method.reset()
    for a, s in zip(first, samples(), strict=True):
        same(a, method.step(s))


def check_save_load(name: str) -> None:
    """A saved and reloaded state continues with identical predictions."""
    method, twin = create_method(name), create_method(name)
    for sample in samples(12):
        method.step(sample)
    twin.load_state_dict(copy.deepcopy(method.state_dict()))
    for sample in samples()[12:]:
        same(method.step(sample), twin.step(sample))


def check_load_rejects(name: str) -> None:
    """A state of something else is refused and nothing has changed."""
    method = create_method(name)
    for sample in samples(12):
        method.step(sample)
    probe = samples(13)[12]
    before = method.predict(probe)
    with pytest.raises(StateError):
        method.load_state_dict({"nonsense": torch.zeros(3)})
    same(before, method.predict(probe))


def check_merge(name: str) -> None:
    """Merging keeps the count of what was seen and leaves the other side alone."""
    a, b = create_method(name), create_method(name)
    for sample in samples()[:12]:
        a.learn(sample)
    for sample in samples()[12:]:
        b.learn(sample)
    theirs = copy.deepcopy(b.state_dict())
    a.merge(b)
    for key, value in b.state_dict().items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0)
    if "prior.seen" in a.state_dict():
        assert int(a.state_dict()["prior.seen"]) == 24
    a.predict(samples(1)[0])
    with pytest.raises(StateError):
        a.merge(create_method("zero-shot" if name != "zero-shot" else "se"))


def check_batching(name: str) -> None:
    """`step_many` and `predict_many` say what a loop says, image by image."""
    one, many = create_method(name), create_method(name)
    looped = [one.step(s) for s in samples()]
    for a, b in zip(looped, many.step_many(samples()), strict=True):
        assert a.index == b.index
        torch.testing.assert_close(a.probs, b.probs)
    for a, b in zip([one.predict(s) for s in samples()], one.predict_many(samples()), strict=True):
        torch.testing.assert_close(a.probs, b.probs)


def check_dtypes(name: str) -> None:
    """bfloat16 and float32 logits both work; results are float32 or wider."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        method = create_method(name)
        for sample in samples(12):
            p = method.step(replace(sample, logits=sample.logits.to(dtype)))
            assert p.probs.dtype in (torch.float32, torch.float64)
            assert torch.isfinite(p.probs).all()


def check_one_class(name: str) -> None:
    method = create_method(name)
    for i in range(3):
        p = method.step(world(3, classes=1)[i])
        assert p.index == 0
        assert p.confidence == pytest.approx(1)


def check_one_view(name: str) -> None:
    method = create_method(name)
    for sample in samples(8):
        p = method.step(one_view(sample))
        assert p.kept is None or p.kept.tolist() == [0]


def check_nan(name: str) -> None:
    """NaN or infinite logits never get in, and the state is as it was."""
    method = create_method(name)
    for bad in (float("nan"), float("inf"), float("-inf")):
        logits = torch.zeros(4, 3)
        logits[1, 2] = bad
        with pytest.raises(InputError, match="NaN or infinite"):
            method.step(Sample(logits))
    assert not method.state_dict()


def check_protocols(name: str) -> None:
    """Episodic forgets, frozen does not learn, pass two of two-pass has no order."""
    method = create_method(name)
    episodic = list(predictions(method, samples(6), "episodic"))
    for p, s in zip(episodic, samples(6), strict=True):
        same(p, create_method(name).step(s))
    frozen = create_method(name)
    list(predictions(frozen, samples(6), "frozen"))
    assert not frozen.state_dict()
    two = create_method(name)
    forward = list(predictions(two, samples(), "two-pass"))
    backward = list(predictions(two, samples()[::-1], "frozen"))[::-1]
    for a, b in zip(forward, backward, strict=True):
        torch.testing.assert_close(a.probs, b.probs)


def check_permutation(name: str) -> None:
    """Renaming the classes permutes the answer: no class is special by its index."""
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    a, b = create_method(name), create_method(name)
    for s in samples():
        p = a.step(s)
        r = b.step(permuted(s, order))
        torch.testing.assert_close(p.probs[order], r.probs, rtol=1e-4, atol=1e-5)


CHECKS = [f for n, f in sorted(globals().items()) if n.startswith("check_")]
