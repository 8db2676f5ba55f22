"""What every method must do, whatever its maths. Each check takes a registered name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import torch

from adte.batch import Batch, Sample
from adte.errors import InputError, StateError
from adte.evaluate.running.protocol import predictions
from adte.methods import Method, create_method
from adte.prediction import Prediction
from adte.state import Entry, State
from adte.testing.samples import CLASSES, narrow, one_view, permuted, samples, world

__all__ = ["CHECKS", "loop"]

SPLITS = (1, 3, 16, 64)
MANY, SOME = 70, 20  # images of a stream; fewer where each of them goes through a tower


def same(a: Prediction, b: Prediction) -> None:
    """The same to the last bit."""
    for name in ("probs", "entropy", "kept", "q", "prior", "scores"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), f"{name} is there in one alone"
        if x is not None and not torch.equal(x, y):
            torch.testing.assert_close(x, y, rtol=0, atol=0)  # says where they differ


@contextmanager
def refused(kind: type[Exception], word: str = "") -> Iterator[None]:
    """The block must raise an error of that kind, whose sentence holds the word."""
    try:
        yield
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
    assert word in said, f"{word!r} is not in {said!r}"


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


def _batches(stream: list[Sample], size: int) -> Iterator[Batch]:
    return Batch.runs((s.batch for s in stream), size)


def _unchanged(method: Method, state: State) -> None:
    """Not a bit of the method's state differs from this one."""
    assert method.state_dict().keys() == state.keys()
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0)


def _unfit(entry: Entry, value: torch.Tensor, sizes: dict[str, int]) -> Iterator[torch.Tensor]:
    """The value of an entry in another dtype and in other shapes, where those are declared."""
    if entry.dtype is not None:
        yield value.to(torch.float16)
    if entry.shape is not None:
        yield value[None]
    if entry.shape and (isinstance(entry.shape[-1], int) or entry.shape[-1] in sizes):
        yield value[..., 1:]


def _kept(method: Method) -> dict[str, str]:
    """Numbers, texts, tensors and collections that a method holds beside its state."""
    plain = (int, float, str, list, tuple, dict, set, torch.Tensor)
    held = {k: v for k, v in vars(method).items() if isinstance(v, plain)}
    return {k: repr(v.tolist() if hasattr(v, "tolist") else v) for k, v in held.items()}


# --------------------------------------------------------------------------- the checks


def check_contract(name: str) -> None:
    """Probabilities, indices, and what explains the decision."""
    method = create_method(name)
    assert method.name == name
    assert method.needs
    for sample in samples(12):
        p = method.step(sample)
        assert p.probs.shape == (7,)
        assert math.isclose(p.probs.sum().item(), 1, abs_tol=1e-5)
        assert (p.probs >= 0).all()
        assert p.index == int(p.probs.argmax())
        assert p.entropy is None or torch.isfinite(p.entropy).all()
        assert p.kept is None or len(set(p.kept.tolist())) == len(p.kept) >= 1


def check_options(name: str) -> None:
    """Every field that can be given is an option: what is none is neither saved nor compared."""
    method = create_method(name)
    known = {option.partition(".")[0] for option in method.params}
    lost = [f.name for f in fields(method) if f.init and f.name not in known]
    assert not lost, f"field {lost[0]!r} is no option; declare it as option(DEFAULT, HELP)"


def check_determinism(name: str) -> None:
    first, second = create_method(name), create_method(name)
    for sample in samples():
        same(first.step(sample), second.step(sample))


def check_predict_leaves_state(name: str) -> None:
    """`predict` is pure: not a bit of the state changes."""
    method = create_method(name)
    for sample in samples(12):
        method.step(sample)
    probe = samples(13)[12]
    before = method.state_dict()
    first = method.predict(probe)
    same(first, method.predict(probe))
    _unchanged(method, before)


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


def check_nothing_hidden(name: str) -> None:
    """What it keeps of a stream is declared in `entries`: else a reset does not forget it, and no
    file has it.
    """
    one, many = create_method(name), create_method(name)
    for method, count in ((one, 1), (many, 12)):
        for sample in samples(count):
            method.step(sample)
        method.reset()
    before, after = _kept(one), _kept(many)
    hidden = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    assert not hidden, f"{hidden[0]!r} is kept of the stream; declare it in `entries`"


def check_names_say_nothing(name: str) -> None:
    """What an image is called changes no answer: its folder often has the name of its class."""
    first, second = create_method(name), create_method(name)
    plain = [s.batch for s in samples(12)]
    for i, batch in enumerate(plain):
        said = CLASSES[i % len(CLASSES)]
        named = replace(batch, keys=(f"{said}/{said}_{i}.jpg",))
        for a, b in zip(first.step(batch), second.step(named), strict=True):
            same(a, b)


def check_save_load(name: str) -> None:
    """A saved and reloaded state continues with identical predictions; another stream begins so."""
    method, twin = create_method(name), create_method(name)
    for sample in samples(12):
        method.step(sample)
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
    method = create_method(name)
    for sample in samples(12):
        method.step(sample)
    probe = samples(13)[12]
    before = method.predict(probe)
    state, sizes = method.state_dict(), method.sizes(probe.batch)
    bad = [{"nonsense": torch.zeros(3)}, state | {"odd": torch.zeros(3)}]
    for key, value in state.items():
        rest = {k: v for k, v in state.items() if k != key}
        bad.append(rest | {"odd": value})
        if key in (entries := method.entries()):
            bad += [rest, *(rest | {key: other} for other in _unfit(entries[key], value, sizes))]
    for other in bad:
        with refused(StateError):
            method.load_state_dict(other, sizes)
    _unchanged(method, state)
    same(before, method.predict(probe))
    method.load_state_dict({})
    assert not method.state_dict()


def check_declared(name: str) -> None:
    """Every entry of the state is declared, and none that is declared is missing."""
    method = create_method(name)
    assert method.stateful == bool(method.entries())
    for sample in samples(6):
        method.step(sample)
    state = method.state_dict()
    if not method.stateful:
        assert not state
        return
    plain = {k for k, e in method.entries().items() if "*" not in k and e.reduce != "derived"}
    assert plain <= state.keys()


def check_merge(name: str) -> None:
    """Merging keeps the count of what was seen and leaves the other side alone."""
    a, b = create_method(name), create_method(name)
    for sample in samples()[:12]:
        a.learn(sample)
    for sample in samples()[12:]:
        b.learn(sample)
    theirs = b.state_dict()
    a.merge(b)
    _unchanged(b, theirs)
    if "prior.seen" in a.state_dict():
        assert int(a.state_dict()["prior.seen"]) == 24
    a.predict(samples(1)[0])
    with refused(StateError):
        a.merge(create_method("zero-shot" if name != "zero-shot" else "se"))
    with refused(StateError, "itself"):
        a.merge(a)


def check_merge_sums(name: str) -> None:
    """What is declared as a sum adds up: it grows with the stream, as no mean or last value does.

    Of N streams of one image, the means add up to N times that of one stream. An honest sum of what
    depends on earlier images, as how many were let in, need not be that of one stream either, but
    is far from that.
    """
    one, stream = create_method(name), samples()
    sums = [key for key, entry in one.entries().items() if entry.reduce == "sum"]
    parts = [create_method(name) for _ in stream if sums]
    for part, sample in zip(parts, stream, strict=False):
        one.learn(sample)
        part.learn(sample)
        if part is not parts[0]:
            parts[0].merge(part)
    for key in sums:
        if key in (state := one.state_dict()) and (whole := float(state[key].abs().sum())):
            times = float(parts[0].state_dict()[key].abs().sum()) / whole
            assert times < len(stream) / 2, (
                f"{key!r} is declared as a sum, but {len(stream)} merged streams of one image have "
                f"{times:.0f} times what one stream of them has; declare another reduction"
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


def _splits(name: str, dtype: torch.dtype, count: int) -> None:
    if any("tower" in need for need in create_method(name).needs):
        count = min(count, SOME)
    stream = [replace(s, logits=s.logits.to(dtype)) for s in samples(count)]
    one = create_method(name)
    online = loop(one, stream)
    frozen = [one.predict(s) for s in stream]  # by what the whole stream taught
    for size in (*(s for s in SPLITS if s < count), count):
        many = create_method(name)
        batched = [p for batch in _batches(stream, size) for p in many.step(batch)]
        for a, b in zip(online, batched, strict=True):
            same(a, b)
        still = [p for batch in _batches(stream, size) for p in many.predict(batch)]
        for a, b in zip(frozen, still, strict=True):
            same(a, b)
        learned = create_method(name)
        for batch in _batches(stream, size):
            learned.learn(batch)
        for key, value in one.state_dict().items():
            torch.testing.assert_close(value, learned.state_dict()[key], rtol=0, atol=0)
            torch.testing.assert_close(value, many.state_dict()[key], rtol=0, atol=0)


def check_batches(name: str) -> None:
    """However a stream is cut, predictions and state are those of a loop: online, after a first
    pass, and frozen.
    """
    _splits(name, torch.float32, MANY)


def check_batches_bfloat16(name: str) -> None:
    """The same for logits in bfloat16."""
    _splits(name, torch.bfloat16, SOME)


def check_many(name: str) -> None:
    """`step_many` and `predict_many` say what a loop says, image by image."""
    one, many = create_method(name), create_method(name)
    for a, b in zip(loop(one, samples()), many.step_many(samples()), strict=True):
        same(a, b)
    for a, b in zip([one.predict(s) for s in samples()], one.predict_many(samples()), strict=True):
        same(a, b)


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
    for sample in world(3, classes=1):
        p = method.step(sample)
        assert p.index == 0
        assert math.isclose(p.confidence, 1, rel_tol=1e-6)


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
    for need, less in lacking.items():
        if need in method.needs:
            with refused(InputError, f"needs {need}"):
                method.step(less)
            with refused(InputError, f"needs {need}"):
                method.predict(less)
            if method.stateful:
                with refused(InputError, f"needs {need}"):
                    method.learn(less)
    assert not method.state_dict()


def check_other_sizes(name: str) -> None:
    """What has learned from some classes or dimensions refuses others, and stays as it was."""
    method = create_method(name)
    if not method.stateful:
        return
    for sample in samples(6):
        method.step(sample)
    before, odd = method.state_dict(), [world(3, classes=3)[0]]
    if "features" in method.needs:
        odd.append(narrow(samples(1)[0]))
    for sample in odd:
        for call in (method.step, method.predict, method.learn):
            with refused(InputError, "has learned from"):
                call(sample)
    _unchanged(method, before)


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


CHECKS: list[Callable[[str], None]] = [
    f for n, f in sorted(globals().items()) if n.startswith("check_")
]
