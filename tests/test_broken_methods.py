"""Methods as somebody may write them wrongly: mistakes are refused in words, or found by checks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pytest
import torch

from adte import Classifier, InputError, StateError
from adte.core.prediction import Prediction
from adte.core.state import Entry
from adte.methods import Method
from adte.testing import METHOD_CHECKS, SmallModel
from adte.testing import methods as checks
from adte.testing.samples import samples


@dataclass(kw_only=True, eq=False)
class Right(Method):
    """The nearest class mean, where a class weight is its first image."""

    needs: ClassVar[frozenset[str]] = frozenset({"features", "class weights"})

    def entries(self):
        return {"sum": Entry(("L", "D"))}

    def look(self, state, image):
        means = state["sum"].float() + image.require("class_weights")
        means = torch.nn.functional.normalize(means, dim=-1)
        return Prediction((20 * image.features[0, 0] @ means.T).softmax(-1))

    def update(self, state, image):
        state["sum"][int(self.look(state, image).probs.argmax())] += image.features[0, 0]


class Mutates(Right):
    def update(self, state, image):
        super().update(state, image)
        image.context.class_weights.mul_(1.01)


class Undeclared(Right):
    def update(self, state, image):
        super().update(state, image)
        state["count"] = torch.ones(())


class OtherDtype(Right):
    def update(self, state, image):
        super().update(state, image)
        state["sum"] = state["sum"].float()


class Functional(Right):
    def update(self, state, image):
        return {"sum": state["sum"] + 1}


class Bare(Right):
    def look(self, state, image):
        return Right.look(self, state, image).probs

    def update(self, state, image):
        state["sum"] += 1


class NoLook(Method):
    def entries(self):
        return {"sum": Entry(("L",))}

    def decide(self, batch, readouts):
        raise AssertionError


class OtherLetter(Right):
    def entries(self):
        return {"sum": Entry(("L", "K"))}


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (Mutates, InputError, "changes logits, features, pixels or class weights in place"),
        (
            Undeclared,
            InputError,
            "entry 'count' is unexpected; the method itself made it so: let it keep",
        ),
        (
            OtherDtype,
            InputError,
            r"torch.float32, expected \(7, 16\) torch.float64; the method its",
        ),
        (Bare, InputError, r"`look` of method 'Bare' gave tensor.*; it returns Prediction\(probs"),
        (NoLook, NotImplementedError, "NoLook defines no look: a method that keeps a state"),
        (OtherLetter, InputError, "entry 'sum' of 'OtherLetter' has a size 'K' in its shape"),
    ],
)
def test_a_mistake_is_refused_in_words_and_nothing_is_learned(kind, error, said):
    method, sample = kind(), samples(1)[0]
    sample = replace(sample, class_weights=sample.class_weights.clone())
    with pytest.raises(error, match=said):
        method.step(sample)
    assert not method.state_dict()


class Peeks(Right):
    needs = frozenset({"features"})


class Ignores(Right):
    def scan(self, state, evidence):
        readouts = []
        for image in evidence:
            readouts.append(self.look(state, image))
            self.update(state, image)
        return readouts, state


class Sleeps(Right):
    def update(self, state, image):
        pass


class Keeps(Right):
    def entries(self):
        return {"sum": Entry(("L", "D"), reduce="keep")}


class Averages(Right):
    def update(self, state, image):
        state["sum"].lerp_(image.features.double().mean(1), 0.1)


@dataclass(kw_only=True, eq=False)
class Remembers(Right):
    past: deque = field(default_factory=deque, init=False)

    def update(self, state, image):
        super().update(state, image)
        self.past.append(image.features.clone())


@pytest.mark.parametrize(
    ("kind", "check", "said"),
    [
        (Mutates, checks.check_leaves_images, "in place"),
        (Peeks, checks.check_needs_all, "name what it looks at in `needs`"),
        (Ignores, checks.check_order, "not equal"),
        (Functional, checks.check_learns, "eleven more images change nothing in the state"),
        (Sleeps, checks.check_learns, "eleven more images change nothing in the state"),
        (Keeps, checks.check_merge, "nothing is taken from the second: .*'sum' say 'keep'"),
        (Averages, checks.check_merge_sums, "'sum' is declared as a sum, but where a stream"),
        (Remembers, checks.check_nothing_hidden, "'past' is kept of the stream"),
    ],
)
def test_a_mistake_is_found_by_a_check(kind, check, said, monkeypatch):
    monkeypatch.setattr(checks, "create_method", lambda name, **options: kind(**options))
    checks.world.cache_clear()  # one of them changes what it is given
    try:
        with pytest.raises((AssertionError, InputError), match=said):
            check(kind.__name__)
    finally:
        checks.world.cache_clear()


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_a_method_without_a_mistake_passes(check, monkeypatch):
    """Its state has one entry: with that left out it was taken for a fresh start, not refused."""
    real = checks.create_method

    def create(name, **options):
        return Right(**options) if name == "Right" else real(name, **options)

    monkeypatch.setattr(checks, "create_method", create)
    check("Right")


@pytest.mark.parametrize(
    ("shape", "more", "said"),
    [
        (5, {}, r"shape=5; give a tuple of sizes and letters"),
        (("L", ""), {}, r"shape=\('L', ''\); give a tuple"),
        (("L",), {"dtype": "float32"}, "dtype='float32'; give one of torch"),
        (("L",), {"reduce": "average"}, "reduce='average'; give one of sum, mean, keep"),
        (("L",), {"reduce": "mean"}, "reduce='mean', but no `by`; name the entry"),
        (("L", 3), {"reduce": "trim"}, "reduce='trim', but no `by`"),
        (("L",), {"reduce": "tail"}, "reduce='tail', but no `most`"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(shape, more, said):
    with pytest.raises(InputError, match=said):
        Entry(shape, **more)


@pytest.mark.parametrize("needs", ["features", frozenset({"feature"}), {"pixel", "logits"}])
def test_needs_that_there_are_not_are_refused(needs):
    with pytest.raises(
        InputError, match=r"Odd has needs=.*; give a frozenset of some of class wei"
    ):
        type("Odd", (Method,), {"needs": needs})


def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path):
    class Poisons(Right):
        def update(self, state, image):
            late = bool(state["sum"].any())
            super().update(state, image)
            if late:
                state["sum"][0, 0] = float("nan")

        def look(self, state, image):
            return Prediction(image.logits[0, 0].softmax(-1))

    clf = Classifier(SmallModel(), ["cat", "dog"], Poisons(), views=4)
    clf.predict([torch.zeros(40, 40, 3, dtype=torch.uint8).numpy()] * 2)
    with pytest.raises(InputError, match="entry 'sum' holds NaN; the method itself made it so"):
        clf.save(tmp_path / "new.adte")
    assert not list(tmp_path.iterdir())


def test_a_state_that_its_declaration_allows_is_no_mistake():
    """Not every slot is filled, a count goes down, and what the model decides comes later."""

    class Unusual(Right):
        @cached_property
        def needs(self):
            return frozenset({"features", "class weights"})

        def entries(self):
            ring = Entry([np.int64(3), "D"], torch.float32, "keep", fill=float("nan"))
            late = Entry(None, None, "keep")
            return super().entries() | {"ring": ring, "step": Entry((), torch.int64), "late": late}

        def update(self, state, image):
            super().update(state, image)
            state["step"] -= 1
            state["ring"][0] = image.features[0, 0]
            if state["step"] < -3:
                state["late"] = torch.ones(2)

    method = Unusual()
    for sample in samples(6):
        method.learn(sample)
    again = Unusual()
    with pytest.raises(StateError, match="'step' holds a negative count"):
        again.load_state_dict(method.state_dict())
    assert method.entries()["ring"].shape == (3, "D")
