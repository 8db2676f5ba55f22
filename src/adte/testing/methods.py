"""What every method must do, whatever its maths. Each check takes a registered name."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import torch

from adte.core.batch import Batch, Sample
from adte.core.errors import InputError, StateError
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.evaluate.running.protocol import predictions
from adte.methods import Method, create_method
from adte.testing.samples import CLASSES, narrow, one_view, permuted, samples, world

__all__ = ["CHECKS", "loop"]

SPLITS = (1, 3, 16, 64)
GROWS = 1.5  # times that a sum is larger, at least, where its stream comes a second time
MANY, SOME = 70, 20  # images of a stream; fewer where each of them goes through a tower
TOWERS = frozenset({"image tower", "text tower", "embeddings"})


def same(a: Prediction, b: Prediction) -> None:
    """The same to the last bit."""
    for name in ("probs", "entropy", "kept", "q", "prior", "scores"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), f"one prediction alone has {name}"
        if x is not None and not torch.equal(x, y):
            torch.testing.assert_close(x, y, rtol=0, atol=0)  # says where they differ


@contextmanager
def refused(kind: type[Exception], word: str = "") -> Iterator[None]:
    """The block must raise an error of that kind, whose sentence holds the word."""
    try:
        yield
    except kind as error:
        sentence = str(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
    assert word in sentence, f"{word!r} is not in {sentence!r}"


def loop(method: Method, stream: list[Sample]) -> list[Prediction]:
    """The stream one image at a time, by `predict` and `learn` alone: what every batch must equal.

    It does not go through `scan`, so it checks it.
    """
    out = []
    for sample in stream:
        if method.order == "learn-first":
            method.learn(sample)
        out.append(method.predict(sample))
        if method.order == "predict-first":
            method.learn(sample)
    return out


def _learned(name: str, count: int = 12) -> Method:
    """A method that has learned from the first images."""
    method = create_method(name)
    for sample in samples(count):
        method.step(sample)
    return method


def _batches(stream: list[Sample], size: int) -> Iterator[Batch]:
    return Batch.runs((s.batch for s in stream), size)


def _unchanged(method: Method, state: State) -> None:
    """Not a bit of the method's state differs from this one."""
    assert method.state_dict().keys() == state.keys()
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0)


# --------------------------------------------------------------------------- answers


def check_contract(name: str) -> None:
    """Probabilities, indices and what explains the decision, for logits of every dtype."""
    assert create_method(name).name == name
    assert create_method(name).needs
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        method = create_method(name)
        for sample in samples(12):
            p = method.step(replace(sample, logits=sample.logits.to(dtype)))
            assert p.probs.shape == (7,)
            assert p.probs.dtype in (torch.float32, torch.float64)
            assert math.isclose(p.probs.sum().item(), 1, abs_tol=1e-5)
            assert (p.probs >= 0).all()
            assert p.index == int(p.probs.argmax())
            assert p.entropy is None or torch.isfinite(p.entropy).all()
            assert p.kept is None or len(set(p.kept.tolist())) == len(p.kept) >= 1


def check_one_class_or_view(name: str) -> None:
    """A single class is certain; a single view is the one that is kept."""
    method = create_method(name)
    for sample in world(3, classes=1):
        p = method.step(sample)
        assert p.index == 0
        assert math.isclose(p.confidence, 1, rel_tol=1e-6)
    method = create_method(name)
    for sample in samples(8):
        p = method.step(one_view(sample))
        assert p.kept is None or p.kept.tolist() == [0]


def check_permutation(name: str) -> None:
    """Renaming the classes permutes the answer: no class is special by its index."""
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    a, b = create_method(name), create_method(name)
    for s in samples():
        p = a.step(s)
        r = b.step(permuted(s, order))
        torch.testing.assert_close(p.probs[order], r.probs, rtol=1e-4, atol=1e-5)


def check_names_say_nothing(name: str) -> None:
    """What an image is called changes no answer: its folder often has the name of its class."""
    first, second = create_method(name), create_method(name)
    for i, sample in enumerate(samples(12)):
        label, batch = CLASSES[i % len(CLASSES)], sample.batch
        named = replace(batch, keys=(f"{label}/{label}_{i}.jpg",))
        for a, b in zip(first.step(batch), second.step(named), strict=True):
            same(a, b)


def check_leaves_images(name: str) -> None:
    """Logits, features, pixels and class weights stay as they are: others look at the same."""
    method, names = create_method(name), ("logits", "features", "class_weights", "pixels")
    for sample in samples(3):
        before = {k: v.clone() for k in names if (v := getattr(sample, k)) is not None}
        for call in (method.predict, method.learn, method.step):
            call(sample)
            for key, value in before.items():
                changed = not torch.equal(getattr(sample, key), value)
                assert not changed, f"{call.__name__} changes {key} in place"


# --------------------------------------------------------------------------- what it looks at


def check_nan(name: str) -> None:
    """NaN or infinite logits never get in, and the state stays as it was."""
    method = create_method(name)
    for bad in (float("nan"), float("inf"), float("-inf")):
        logits = torch.zeros(4, 3)
        logits[1, 2] = bad
        with refused(InputError, "NaN or infinite"):
            method.step(Sample(logits))
    assert not method.state_dict()


def check_needs(name: str) -> None:
    """What it needs and an image lacks is named, and nothing is learned."""
    method, sample = create_method(name), samples(1)[0]
    lacking = {
        "features": replace(sample, features=None, pixels=None),
        "class weights": replace(sample, class_weights=None),
    }
    for need in method.needs & lacking.keys():
        calls: list[Callable[[Sample], object]] = [method.step, method.predict]
        for call in calls + ([method.learn] if method.stateful else []):
            with refused(InputError, f"needs {need}"):
                call(lacking[need])
    assert not method.state_dict()


def check_needs_all(name: str) -> None:
    """It works with what it says that it needs, and nothing else: what it looks at is declared."""
    method = create_method(name)
    parts = {"features": "features", "class weights": "class_weights", "pixels": "pixels"}
    needs = set(method.needs)
    if "image tower" in needs:  # its features lead to logits by them alone
        needs.add("class weights")
    less: dict[str, Any] = {v: None for k, v in parts.items() if k not in needs}
    if needs.isdisjoint(TOWERS):
        less |= {"model": None}
    for sample in samples(3):
        for call in (method.step, method.predict, method.learn):
            try:
                call(replace(sample, **less))
            except Exception as error:
                raise AssertionError(
                    f"{call.__name__} fails where an image has no {' and no '.join(less)} "
                    f"({type(error).__name__}: {error}); name what it looks at in `needs`"
                ) from error


def check_other_sizes(name: str) -> None:
    """What has learned from some classes or dimensions refuses others, and stays as it was."""
    method = _learned(name, 6)
    if not method.stateful:
        return
    before, odd = method.state_dict(), [world(3, classes=3)[0]]
    if "features" in method.needs:
        odd.append(narrow(samples(1)[0]))
    for sample in odd:
        for call in (method.step, method.predict, method.learn):
            with refused(InputError, "has learned from"):
                call(sample)
    _unchanged(method, before)


# --------------------------------------------------------------------------- what it keeps


def check_declared(name: str) -> None:
    """Fields are options, so that they are saved and compared; the state has what is declared."""
    method = create_method(name)
    known = {option.partition(".")[0] for option in method.params}
    lost = [f.name for f in fields(method) if f.init and f.name not in known]
    assert not lost, f"field {lost[0]!r} is no option; declare it as option(DEFAULT, HELP)"
    entries = method.entries()
    assert method.stateful == bool(entries)
    due = {k for k, e in entries.items() if "*" not in k and e.reduce != "derived"}
    state = _learned(name, 6).state_dict()
    assert due <= state.keys()
    assert entries or not state


def check_fresh_start(name: str) -> None:
    """Another instance, a clone and what was reset say what the first one said."""
    method = create_method(name)
    first = [method.step(s) for s in samples()]
    fresh = method.clone()
    assert (fresh.name, fresh.params, fresh.state_dict()) == (method.name, method.params, {})
    method.reset()
    for other in (create_method(name), fresh, method):
        for a, s in zip(first, samples(), strict=True):
            same(a, other.step(s))


def check_nothing_hidden(name: str) -> None:
    """What it keeps of a stream is declared in `entries`: else a reset does not forget it, and no
    file has it.
    """
    found = []
    for count in (1, 12, 12):
        method = _learned(name, count)
        method.reset()
        found.append(_kept(method))
    one, many, again = found
    hidden = sorted(k for k, v in many.items() if one.get(k) != v and again.get(k) == v)
    assert not hidden, f"{hidden[0]!r} is kept of the stream; declare it in `entries`"


def _kept(method: Method) -> dict[str, object]:
    """What a copy of a method holds beside its state, in a form that can be compared.

    What no copy can be made of, as a function within a function, is passed over.
    """
    out: dict[str, object] = {}
    for name, value in method.__getstate__().items():
        if name not in ("_context", "_state"):
            held = io.BytesIO()
            with suppress(pickle.PicklingError, TypeError, AttributeError):
                _ByValue(held).dump(value)
                out[name] = held.getvalue()
    return out


class _ByValue(pickle.Pickler):
    """A pickle of the same bytes for tensors of the same numbers, wherever they lie."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return list, (value.tolist() if value.ndim else [value.item()],)
        return NotImplemented


def check_predict_leaves_state(name: str) -> None:
    """`predict` is pure: not a bit of the state changes."""
    method, probe = _learned(name), samples(13)[12]
    before = method.state_dict()
    same(method.predict(probe), method.predict(probe))
    _unchanged(method, before)


def check_learns(name: str) -> None:
    """A method that keeps a state learns: after some images it is another one."""
    method = create_method(name)
    if not method.stateful:
        return
    method.learn(samples(1)[0])
    before = method.state_dict()
    assert before, "nothing is in the state after an image"
    for sample in samples(12)[1:]:
        method.learn(sample)
    same = [torch.equal(v, before[k]) for k, v in method.state_dict().items() if k in before]
    assert not all(same), "eleven more images change nothing in the state"


def check_save_load(name: str) -> None:
    """A saved and reloaded state goes on with identical predictions; another stream begins so."""
    method, twin = _learned(name), create_method(name)
    twin.load_state_dict(copy.deepcopy(method.state_dict()))
    for i, sample in enumerate(samples()[12:]):
        if i == 4:
            method.begin()
            twin.load_state_dict(copy.deepcopy(method.state_dict()))
        same(method.step(sample), twin.step(sample))


def check_load_rejects(name: str) -> None:
    """A state of something else is refused and nothing has changed; an empty one is a fresh start.

    Something else: an entry is missing, has another name, dtype or shape, or is one too many.
    """
    method, probe = _learned(name), samples(13)[12]
    before = method.predict(probe)
    state, sizes, entries = method.state_dict(), method.sizes(probe.batch), method.entries()
    bad = [{"nonsense": torch.zeros(3)}, state | {"odd": torch.zeros(3)}]
    for key, value in state.items():
        rest = {k: v for k, v in state.items() if k != key}
        bad.append(rest | {"odd": value})
        if key in entries:
            bad += [rest] if rest else []
            bad += [rest | {key: other} for other in _unfit(entries[key], value, sizes)]
    for other in bad:
        with refused(StateError):
            method.load_state_dict(other, sizes)
    _unchanged(method, state)
    same(before, method.predict(probe))
    method.load_state_dict({})
    assert not method.state_dict()


def _unfit(entry: Entry, value: torch.Tensor, sizes: dict[str, int]) -> Iterator[torch.Tensor]:
    """The value of an entry in another dtype and in other shapes, where those are declared."""
    if entry.dtype is not None:
        yield value.to(torch.float16)
    if entry.shape is not None:
        yield value[None]
    if entry.shape and (isinstance(entry.shape[-1], int) or entry.shape[-1] in sizes):
        yield value[..., 1:]


# --------------------------------------------------------------------------- merging


def check_merge(name: str) -> None:
    """Merging takes something from the other side, counts all images, and leaves it alone."""
    a, b = create_method(name), create_method(name)
    for i, sample in enumerate(samples()):
        (a if i < 12 else b).learn(sample)
    ours, theirs = a.state_dict(), b.state_dict()
    a.merge(b)
    _unchanged(b, theirs)
    merged = a.state_dict()
    assert int(merged.get("prior.seen", 24)) == 24
    kept = [k for k, e in a.entries().items() if e.reduce == "keep" and k in ours]
    differ = [k for k, v in ours.items() if k in theirs and not _equal(v, theirs[k])]
    moved = [k for k in differ if not _equal(ours[k], merged[k])]
    assert moved or not differ, (
        "two streams that differ are merged, and nothing is taken from the second: no entry has a "
        f"reduction that does ({', '.join(map(repr, kept))} say 'keep')"
    )
    a.predict(samples(1)[0])
    with refused(StateError):
        a.merge(create_method("zero-shot" if name != "zero-shot" else "se"))
    with refused(StateError, "itself"):
        a.merge(a)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or (a.shape == b.shape and bool(a.isclose(b, equal_nan=True).all()))


def check_merge_sums(name: str) -> None:
    """What is declared as a sum adds up: it grows with the stream, as no mean or last value does.

    The same images learned again add as much again to a sum, and little to a mean, be it a moving
    one. An honest sum of what depends on earlier images, as how many were let in, need not be
    doubled, but grows.
    """
    method, states = create_method(name), []
    sums = [key for key, entry in method.entries().items() if entry.reduce == "sum"]
    if not sums:
        return
    for _ in range(2):
        for sample in samples():
            method.learn(sample)
        states.append(method.state_dict())
    once, twice = states
    for key in sums:
        if key in once and (whole := float(once[key].double().abs().sum())):
            times = float(twice[key].double().abs().sum()) / whole
            assert times > GROWS, (
                f"{key!r} is declared as a sum, but where a stream comes a second time it is "
                f"{times:.2f} times what it was after the first, and not twice; declare another "
                "reduction"
            )


def check_merge_other_weights(name: str) -> None:
    """What was learned with other class weights is refused where they are part of the state."""
    a, b, sample = create_method(name), create_method(name), samples(1)[0]
    if all(e.reduce != "same" for e in a.entries().values()):
        return
    assert sample.class_weights is not None
    a.learn(sample)
    b.learn(replace(sample, class_weights=-sample.class_weights))
    before = a.state_dict()
    with refused(StateError, "different class weights"):
        a.merge(b)
    _unchanged(a, before)


# --------------------------------------------------------------------------- the stream


def check_batches(name: str) -> None:
    """However a stream is cut, predictions and state are those of a loop: online, after a first
    pass, and frozen; for logits in float32 and in bfloat16.
    """
    for dtype, count in ((torch.float32, MANY), (torch.bfloat16, SOME)):
        count = count if create_method(name).needs.isdisjoint(TOWERS) else SOME
        stream = [replace(s, logits=s.logits.to(dtype)) for s in samples(count)]
        one = create_method(name)
        online = loop(one, stream)
        frozen = [one.predict(s) for s in stream]  # by what the whole stream taught
        for size in (*(s for s in SPLITS if s < count), count):
            many, learner = create_method(name), create_method(name)
            batched = [p for batch in _batches(stream, size) for p in many.step(batch)]
            still = [p for batch in _batches(stream, size) for p in many.predict(batch)]
            for a, b in zip(online + frozen, batched + still, strict=True):
                same(a, b)
            for batch in _batches(stream, size):
                learner.learn(batch)
            for other in (many, learner):
                _unchanged(other, one.state_dict())


def check_order(name: str) -> None:
    """With order="learn-first" an image is learned from before it is predicted."""
    one, many = (create_method(name, order="learn-first") for _ in range(2))
    stream = samples(SOME)
    batched = [p for batch in _batches(stream, 7) for p in many.step(batch)]
    for a, b in zip(loop(one, stream), batched, strict=True):
        same(a, b)


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


CHECKS: list[Callable[[str], None]] = [
    f for n, f in sorted(globals().items()) if n.startswith("check_")
]
