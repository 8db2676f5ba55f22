"""The contract of a method.

A method turns the views of images into predictions, and may learn from the stream. It says how in
three steps over a batch of images, of which only the second has an order:

    evidence(batch)          what each image has to say; pure, on the batch's device
    scan(state, evidence)    takes it in, in stream order: what each image reads of the state then
    decide(batch, readouts)  the predictions; pure, all images at once

and `read(state, evidence)` is `scan` for a state that does not change. However a stream is cut into
batches, the predictions are the same. What a method keeps is declared entry by entry (`entries`,
see `adte.core.state`); reset, saving, loading, merging and device moves follow from that.

Three ways to write one, from easy to fast:
  * without state: `decide(batch, None)` alone;
  * sequential by nature: `look(state, image)` and `update(state, image)`, one image at a time;
  * batched: `evidence`, `scan`, `read`, `absorb` and `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, overload

from torch import Tensor

from adte.core import state as declared
from adte.core.batch import Batch, Context, Sample, check_unit
from adte.core.errors import InputError, StateError, brief
from adte.core.machine import as_it_is, threads
from adte.core.options import check, coerce, flat, option
from adte.core.prediction import Prediction, Predictions, check_probs
from adte.core.state import Entry, State
from adte.methods.prior import Belief

__all__ = ["ORDER", "AdaptingMethod", "Method"]

# What a method may need of an image, and the attribute of a batch that is it
GIVEN = {
    "features": "features", "class weights": "class_weights", "pixels": "pixels",
    "image tower": "model", "text tower": "model", "embeddings": "model",
}  # fmt: skip
_TOWERS = {"image tower", "text tower", "embeddings"}
NEEDS = frozenset({"logits", *GIVEN})

ORDER = "whether an image is predicted before it is learned from, or after"


@dataclass(kw_only=True, eq=False)
class Method:
    """A rule that turns the views of an image into a prediction, and may learn from the stream.

    `create_method(NAME)` makes one. Use it with `step`, which predicts and learns, or with
    `predict` and `learn` apart. To write one of your own, derive a dataclass from this class and
    define `decide`, or `entries` with `look` and `update`.

    Options are the dataclass fields, and those of its parts; `repr`, `clone` and the help of the
    command line are made from them. The state is made at the first image, when the number of
    classes is known.

    Attributes:
        name: the name that it is registered under; until then that of its class.
        needs: what it looks at: some of "logits", "features", "class weights", "pixels",
            "text tower", "image tower" and "embeddings".
        reference: the paper that it comes from.
        order: whether an image is predicted before it is learned from, or after.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"logits"})
    reference: ClassVar[str] = ""

    order: Literal["predict-first", "learn-first"] = option("predict-first", ORDER)

    _state: State | None = field(default=None, init=False, repr=False)
    _sizes: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _context: Context | None = field(default=None, init=False, repr=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        needs: Any = vars(cls).get("needs")
        if not isinstance(needs, str | frozenset | set | list | tuple):  # a property, or a field
            return
        if isinstance(needs, str) or not {*needs} <= NEEDS:
            raise InputError(
                f"{cls.__name__} has needs={brief(needs)}; give a frozenset of some of "
                f"{', '.join(sorted(NEEDS))}"
            )
        cls.needs = frozenset(needs)

    def __post_init__(self) -> None:
        coerce(self)
        check(self)

    # ------------------------------------------------------------------ what a method defines

    def entries(self) -> dict[str, Entry]:
        """Declare what the method keeps of the stream, as `Entry` by name; by default nothing."""
        return {}

    def initial(self, batch: Batch) -> State:
        """Make the state before the first image, for batches like this one."""
        return declared.fresh(self.name, self.entries(), self.sizes(batch), batch.logits.device)

    def sizes(self, batch: Batch) -> dict[str, int]:
        """The numbers behind letters in declared shapes: L classes, D feature dimensions."""
        wide = {} if batch.features is None else {"D": batch.features.shape[-1]}
        return {"L": batch.classes, **wide}

    def refresh(self, state: State) -> None:
        """Compute the derived entries of a state again, in place, after loading or merging."""

    def for_new_stream(self, state: State) -> State:
        """Turn a copy of the state into that with which another stream begins; by default all."""
        return state

    @property
    def class_prior(self) -> Belief | None:
        """The prior and the shares of the classes; None if none is estimated, or not yet."""
        return None

    def adjustment(self, logits: Tensor) -> Tensor | None:
        """The bias (L,), float64, taken off the next image's logits (V, L); None if none is."""
        return None

    def evidence(self, batch: Batch) -> Any:
        """Compute what is needed of each image, before any order matters.

        Return a tensor (B, …) or the batch itself, of which `look` and `update` get one row at a
        time, or anything that your own `scan` takes.
        """
        return batch

    def look(self, state: State, image: Any) -> Prediction:
        """Predict one image from its evidence (a batch of one), without changing the state."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no look: a method that keeps a state defines look and "
            "update, one without a state defines decide"
        )

    def update(self, state: State, image: Any) -> None:
        """Learn from the evidence of one image (a batch of one), changing the state in place."""
        raise NotImplementedError(f"{type(self).__name__} keeps a state, but defines no update")

    def look_and_update(self, state: State, image: Any) -> Prediction:
        """Do `look`, then `update`; for methods that can do both at the cost of one."""
        prediction = self.look(state, image)
        self.update(state, image)
        return prediction

    def scan(self, state: State, evidence: Any) -> tuple[Any, State]:
        """Learn from images in order, in a draft; return what each reads of it, and the draft."""
        readouts = []
        for image in _images(evidence):
            if self.order == "predict-first":
                readouts.append(self.look_and_update(state, image))
            else:
                self.update(state, image)
                readouts.append(self.look(state, image))
        return readouts, state

    def absorb(self, state: State, evidence: Any) -> State:
        """Do the same as `scan` without readouts: only learn."""
        for image in _images(evidence):
            self.update(state, image)
        return state

    def read(self, state: State, evidence: Any) -> Any:
        """Return what each image reads of a state that does not change."""
        return [self.look(state, image) for image in _images(evidence)]

    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        """Make the predictions of a batch, from what its images read of the state.

        Args:
            batch: the images.
            readouts: what `scan` or `read` returned; None for a method without state.
        """
        if readouts is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither look nor decide")
        if odd := [r for r in readouts if not isinstance(r, Prediction)]:
            raise InputError(
                f"`look` of method {self.name!r} gave {brief(odd[0])}; it returns Prediction(probs)"
            )
        return Predictions.stack(readouts)

    # ------------------------------------------------------------------ what a user calls

    @property
    def stateful(self) -> bool:
        """Whether the method learns from the stream."""
        return self._state is not None or bool(self.entries())

    @overload
    def step(self, images: Sample) -> Prediction: ...
    @overload
    def step(self, images: Batch) -> Predictions: ...
    def step(self, images: Sample | Batch) -> Prediction | Predictions:
        """Predict images and learn from them, one by one in the method's `order`.

        Args:
            images: a `Sample`, or a `Batch` of several images.

        Returns:
            A `Prediction` for a sample, `Predictions` for a batch.

        Raises:
            InputError: if the images do not fit the method or its state; nothing is then learned.
        """
        with self._taken(images) as batch:
            if not self.stateful:
                return _like(images, self._decided(batch, None))
            evidence = self.evidence(batch)
            readouts, draft = self.scan(declared.copy(self._fitting(batch)), evidence)
            out = self._decided(batch, readouts)
        self._state = self._kept(draft)
        return _like(images, out)

    @overload
    def predict(self, images: Sample) -> Prediction: ...
    @overload
    def predict(self, images: Batch) -> Predictions: ...
    def predict(self, images: Sample | Batch) -> Prediction | Predictions:
        """Predict images without learning from them.

        Arguments and results are those of `step`.
        """
        with self._taken(images) as batch:
            readouts = None
            if self.stateful:
                readouts = self.read(self._fitting(batch), self.evidence(batch))
            return _like(images, self._decided(batch, readouts))

    def learn(self, images: Sample | Batch) -> None:
        """Learn from images, in order, without predicting them."""
        with self._taken(images) as batch:
            if not self.stateful:
                return
            draft = self.absorb(declared.copy(self._fitting(batch)), self.evidence(batch))
        self._state = self._kept(draft)

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        """Forget everything that was learned."""
        self._state, self._sizes = None, {}

    def begin(self) -> None:
        """Begin another stream: keep what was learned about the model, forget the last stream.

        Methods that cannot tell the two apart keep everything.
        """
        if self._state is not None:
            self._state = self.for_new_stream(declared.copy(self._state))

    def state_dict(self) -> State:
        """A copy of what was learned, as tensors by name; empty before the first image."""
        kept = declared.saved(self.entries(), self._state or {})
        return {name: value.detach().clone() for name, value in kept.items()}

    def load_state_dict(
        self, state: Mapping[str, Tensor], sizes: Mapping[str, int] | None = None
    ) -> None:
        """Replace what was learned by a `state_dict`.

        Everything is checked first: after an error nothing has changed.

        Args:
            state: what `state_dict` returned.
            sizes: numbers that it must have been made for, such as {"L": 1000} classes.

        Raises:
            StateError: if it is of another method, or its entries do not fit.
        """
        if not state:
            return self.reset()
        if not self.stateful:
            raise StateError(
                f"method {self.name!r} keeps no state, but entry "
                f"{next(iter(state))!r} came; it was saved by another method"
            )
        found = declared.check(self.name, self.entries(), state, sizes)
        new = declared.copy(dict(state))
        self.check_state(new)
        self.refresh(new)
        self._state, self._sizes = new, found

    def check_state(self, state: State) -> None:
        """Raise a `StateError` for values that fit the declaration but cannot be."""

    def merge(self, other: Method, start: Method | None = None) -> None:
        """Add what another copy of this method has learned, as if its stream had followed.

        Args:
            other: the copy.
            start: what is part of both as it is, which then counts once.

        Raises:
            StateError: if it is another method, or has other options; or if there is a `start`, and
                the state is not made of sums.
        """
        self._check_copy(other)
        if start is not None:
            self._check_copy(start)
        if other._state is None:
            return
        if self._state is None:
            self._state, self._sizes = declared.copy(other._state), dict(other._sizes)
            return
        common = None if start is None else start._state
        new = declared.merge(self.name, self.entries(), self._state, other._state, common)
        self.refresh(new)
        self._state = new

    def _check_copy(self, other: Method) -> None:
        """Refuse to merge what is no other copy of this method."""
        if type(other) is not type(self) or other.name != self.name:
            kind = other.name if isinstance(other, Method) else type(other).__name__
            raise StateError(
                f"cannot merge the state of {kind!r} into {self.name!r}; merge copies of one method"
            )
        if other is self:
            raise StateError(f"cannot merge {self.name!r} into itself; give another copy")
        theirs = other.params
        for name, mine in self.params.items():
            if mine != theirs[name] and name.rpartition(".")[2] != "seed":
                raise StateError(
                    f"cannot merge {self.name!r} with {name}={mine!r} and {theirs[name]!r}; "
                    "give both the same options"
                )

    def clone(self) -> Method:
        """A copy with the same options that has learned nothing."""
        copy = replace(self)
        copy.name = self.name  # type: ignore[misc]  # a preset's name lives on the instance
        return copy

    @property
    def params(self) -> dict[str, Any]:
        """All options by name, those of parts as `part.name`."""
        return flat(self)

    # ------------------------------------------------------------------ inside

    @contextmanager
    def _taken(self, images: Sample | Batch) -> Iterator[Batch]:
        """The images, checked, in a block where their own dtype and device decide."""
        batch = _batch(images)
        before = _versions(batch)
        with as_it_is(batch.logits.device), self._threads(batch):
            yield self._bound(batch)
        if before != _versions(batch):
            raise InputError(
                f"method {self.name!r} changes logits, features, pixels or class weights in place; "
                "others are given the same: let it work on a copy"
            )

    def _threads(self, batch: Batch) -> AbstractContextManager[None]:
        """One thread, the fastest for small tensors; for a tower as many as that is worth."""
        model = batch.context.model
        if model is None or self.needs.isdisjoint(_TOWERS):
            return threads(1)
        return model.at_work(batch.logits.shape[1 if "image tower" in self.needs else 2])

    def _bound(self, batch: Batch) -> Batch:
        batch.check()
        for need in sorted(self.needs & GIVEN.keys()):
            batch.require(GIVEN[need])
        if "features" in self.needs and batch.context.unit:
            check_unit(batch.require("features"))
        if self._context is None or not self._context.same(batch.context):
            batch.context.check()
            self._context = batch.context
        return batch

    def _decided(self, batch: Batch, readouts: Any) -> Predictions:
        """The predictions, if they are probabilities for these images and classes."""
        out: Any = self.decide(batch, readouts)
        if not isinstance(out, Predictions) or not isinstance(out.probs, Tensor):
            got = out.probs if isinstance(out, Predictions) else out
            raise InputError(
                f"`decide` of method {self.name!r} gave {type(got).__name__} for probabilities; it "
                "returns Predictions(probs) of a tensor (images, classes)"
            )
        shape = len(batch), batch.classes
        if out.probs.shape != shape or out.probs.device.type == "cpu":  # a GPU is not waited for
            check_probs(self.name, out.probs, shape)
        return out

    def _kept(self, draft: State) -> State:
        """The state that a draft becomes, without the graph of logits that have one: it would hold
        all images so far. It is as declared; where it is as it was, that is so.
        """
        new = {k: v.detach() if v.requires_grad else v for k, v in draft.items()}
        if self._state is None or not declared.alike(new, self._state):
            declared.check_kept(self.name, self.entries(), new, self._sizes, live=True)
        return new

    def _fitting(self, batch: Batch) -> State:
        """The state on the batch's device; a fresh one before the first image."""
        sizes = self.sizes(batch)
        if self._state is None:
            state = self.initial(batch)
            self._sizes = sizes  # of the state to come; a later image of other sizes is refused
            return state
        if odd := [k for k, n in self._sizes.items() if sizes.get(k, n) != n]:
            what = {"L": "classes", "D": "feature dimensions (0: logits alone)"}.get(odd[0], odd[0])
            raise InputError(
                f"method {self.name!r} has learned from images of {self._sizes[odd[0]]} {what}, "
                f"but one of {sizes[odd[0]]} came; reset it or use another copy"
            )
        return declared.move(self._state, batch.logits.device)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_context": None}  # it holds the model; bound anew when needed


@dataclass(kw_only=True, eq=False)
class AdaptingMethod(Method):
    """A method that adapts to an image, whether it predicts or learns; once where it does both."""

    def adapted(self, state: State, image: Batch) -> tuple[Prediction, Any]:
        """The prediction after adapting to one image, and what it changed."""
        raise NotImplementedError(f"{type(self).__name__} defines no adapted")

    def take(self, state: State, image: Batch, change: Any) -> None:
        """Keep that change in the state, in place."""
        raise NotImplementedError(f"{type(self).__name__} defines no take")

    def look(self, state: State, image: Batch) -> Prediction:
        return self.adapted(state, image)[0]

    def update(self, state: State, image: Batch) -> None:
        self.look_and_update(state, image)

    def look_and_update(self, state: State, image: Batch) -> Prediction:
        prediction, change = self.adapted(state, image)
        self.take(state, image, change)
        return prediction


def _versions(batch: Batch) -> list[int | None]:
    """How often what a batch holds was changed in place, as far as torch counts it."""
    parts = batch.logits, batch.features, batch.pixels, batch.context.class_weights
    return [None if x is None or x.is_inference() else x._version for x in parts]


def _batch(images: Sample | Batch) -> Batch:
    if not isinstance(images, Sample | Batch):
        raise InputError(
            f"{type(images).__name__} is neither a Sample nor a Batch; pass the logits of an "
            "image (views, classes) as Sample(logits)"
        )
    return images.batch if isinstance(images, Sample) else images


def _images(evidence: Any) -> Iterable[Any]:
    return (evidence[i : i + 1] for i in range(len(evidence)))


def _like(images: Sample | Batch, out: Predictions) -> Prediction | Predictions:
    return out[0] if isinstance(images, Sample) else out
