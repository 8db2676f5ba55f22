"""Classifier: a model, its classes, a method and its state. What users hold."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from adte._version import __version__
from adte.classifier.arguments import (
    checked_names,
    is_flow,
    make_classes,
    make_method,
    make_model,
    make_views,
    name_of,
    named_images,
)
from adte.classifier.calibration import (
    Calibration,
    calibrate,
    check_temperature,
    indices_of,
    tempered,
)
from adte.classifier.facts import check_more
from adte.classifier.fit import (
    check_fit,
    check_named,
    check_one_order,
    check_same_model,
    read_learned,
    read_method,
)
from adte.classifier.learned import Learned, Lineage
from adte.core.batch import Batch, Context, Sample
from adte.core.errors import (
    InputError,
    StateError,
    UnknownModel,
    UnreadableFile,
    brief,
    unknown,
)
from adte.core.loading import DEFAULT_MODEL
from adte.core.machine import as_it_is, pulled
from adte.core.options import at_least
from adte.core.prediction import Prediction, check_probs
from adte.core.state import check_kept
from adte.files.claims import is_others
from adte.files.devices import is_special
from adte.files.order import Order
from adte.files.states import check_path, save_state
from adte.images import Preprocess, Views
from adte.methods import Method
from adte.models import FixedClasses, Model, check_model
from adte.models.prompts import SINGLE, Prompts, Templates
from adte.pipeline import Pipeline, default_group

__all__ = ["Classifier", "Share", "Unread"]

Image = Any  # a path, bytes, a PIL image, an array or a tensor: what `load_image` takes
MADE_OF = frozenset({"classes", "method", "model", "prompts", "views"})


class Unread(NamedTuple):
    """An image that could not be read (`source`), and why (`reason`)."""

    source: str
    reason: str


class Share(NamedTuple):
    """The estimated share of a class in the stream, with a 95 % interval from `low` to `high`."""

    label: str
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return f"{self.label} {100 * self.share:.0f} % ({low:.0f}–{high:.0f})"


class Classifier:
    """An image classifier that learns from the images it classifies, without labels.

    It can be used from several threads. Images are encoded in parallel; learning from them happens
    one at a time, in the order in which their encoding ends.

    Args:
        model: name of a model, as `load_model` takes it, or a `Model` in evaluation mode.
        classes: class names. Classes are identified by index, so names may repeat. A model of fixed
            classes (`timm:NAME`) takes some of its own, by name or id, or all if none are named.
        method: name of a method, as `create_method` takes it, or a `Method`, which is then this
            classifier's alone: it learns. Give another classifier `method.clone()`.
        templates: prompt templates with {} for the class name, the name of a template set such as
            "seven", or `Prompts` with descriptions. The vectors of all prompts of a class are
            averaged.
        views: number of views per image, or a `Views` with all its options. With "auto", twelve
            are drawn, then four at a time up to 64, until the answer can hardly change. That takes
            about a third of the views and costs a little accuracy (docs/guides/speed.md); images
            are then processed one at a time.
        seed: seed of the views. The views of an image depend only on the image itself and the
            seed. So batch size, order and worker make no difference to an answer, except through
            what was learned before it.
        weights, device, dtype, tokenizer, runtime, threads: passed to `load_model` if the model is
            given by name.
        options: options of the method, if it is given by name.

    Attributes:
        classes: class names.
        model, method, prompts, views: what the classifier was made from.
        seen: number of images learned from so far.
        frozen: whether learning is switched off.
        lineage: digests of the states that it goes back to, so that `merge` counts none twice.
        unread: images that the last call with errors="skip" left out, as (source, reason).

    Raises:
        InputError: if an argument cannot be used, or the method needs what the model does not
            offer.

    >>> clf = Classifier("tiny", classes=["cat", "dog", "car"])      # doctest: +SKIP
    >>> clf.predict("photo.jpg").label                               # doctest: +SKIP
    'cat'
    """

    def __init__(
        self,
        model: str | Model = DEFAULT_MODEL,
        classes: Sequence[str] = (),
        method: str | Method = "tilt",
        *,
        templates: Templates | Prompts = SINGLE,
        views: int | Views | Literal["auto"] = 64,
        seed: int = 0,
        weights: str | os.PathLike[str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        tokenizer: Any = None,
        runtime: str = "auto",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        names = checked_names(classes)  # before a model is loaded
        self.prompts = Prompts.of(templates)
        self.views = make_views(views, seed)
        own = [*signature(Classifier).parameters][:-1]  # but for **options
        self.method = make_method(method, options, own)
        how = {"weights": weights, "device": device, "dtype": dtype, "tokenizer": tokenizer,
               "threads": threads}  # fmt: skip
        towers = make_model(model, runtime, **how)
        with as_it_is(towers.device):
            self.model, self.classes, vectors = make_classes(towers, names, self.prompts)
        self.model.require(self.method.needs, by=f"method {self.method.name!r}")
        keep = "pixels" in self.method.needs
        auto = isinstance(views, str)
        self.pipeline = Pipeline(self.model, self.views, keep_pixels=keep, auto=auto)
        self.context = Context.of(self.model, vectors, self.classes)
        self.frozen = False
        self.seen = 0
        self.lineage = Lineage()
        self.temperature = 1.0
        self.unread: list[Unread] = []
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ predicting

    @overload
    def predict(
        self,
        image: list[Image] | tuple[Image, ...],
        errors: Literal["raise", "skip"] = ...,
        *,
        learn: bool = ...,
    ) -> list[Prediction]: ...
    @overload
    def predict(  # of its dimensions depends whether it is one image
        self,
        image: Tensor | NDArray[Any],
        errors: Literal["raise", "skip"] = ...,
        *,
        learn: bool = ...,
    ) -> Any: ...
    @overload
    def predict(
        self, image: Image, errors: Literal["raise", "skip"] = ..., *, learn: bool = ...
    ) -> Prediction: ...
    def predict(
        self, image: Any, errors: Literal["raise", "skip"] = "raise", *, learn: bool = True
    ) -> Any:
        """Predict an image, or each image of a list, and learn from it.

        A list is learned from as a whole or not at all: if one of its images raises an error,
        nothing has changed. With views="auto", other threads wait until the whole list is done.

        Args:
            image: anything that `load_image` takes, a list of such images, or an array
                (N, H, W, 3).
            errors: "raise" stops at an image that cannot be read. "skip" leaves it out of the
                answer and lists it in `unread`; a single image that cannot be read is always an
                error.
            learn: with False, nothing is learned.

        Returns:
            A `Prediction` for a single image, else a list of them.

        Raises:
            InputError: if an image cannot be read.
        """
        if isinstance(image, (list, tuple)) or getattr(image, "ndim", 0) == 4:
            with self._whole(self._batches(image, 1, 0, errors)) as batches:
                return [p for batch in batches for p in self.step(batch, learn)]
        _check_way(errors)
        return self.step(self._alone(image), learn)[0]

    def stream(
        self,
        images: str | os.PathLike[str] | Iterable[Image],
        *,
        batch: int = 1,
        workers: int = 0,
        errors: Literal["raise", "skip"] = "raise",
        learn: bool = True,
        order: Order = "shuffled",
    ) -> Iterator[Prediction]:
        """Predict many images, one `Prediction` at a time, and learn from each.

        Args:
            images: a folder, an archive, Parquet files, an address in an object store (s3://…), or
                any iterable of images as `load_image` takes them.
            batch: images to process together; it does not change the predictions.
            workers: threads that decode and crop in advance.
            errors: "raise" stops at an image that cannot be read; "skip" leaves it out and lists it
                in `unread`.
            learn: with False, nothing is learned.
            order: "shuffled" takes a folder, a .zip archive or an address in an order that follows
                from the names of the images and the seed: folders are mostly sorted by class, which
                costs a method that learns accuracy. "listed" is the order of the names. Images of
                an iterable, a tar archive or a Parquet file come as they are, whatever it says.

        Yields:
            A `Prediction` for each image; its `source` is the image's name.
        """
        for some in self._batches(images, batch, workers, errors, order):
            yield from self.step(some, learn)

    predict_many = stream

    def learn(
        self, images: Any, errors: Literal["raise", "skip"] = "raise", order: Order = "shuffled"
    ) -> int:
        """Learn from images without predicting them.

        A list is learned from as a whole or not at all, as in `predict`. A folder or a generator is
        learned from image by image; after an error, `seen` says how many were taken in.

        Args:
            images: an image, a list of images, or anything that `stream` takes.
            errors: "raise" stops at an image that cannot be read; "skip" leaves it out and lists it
                in `unread`.
            order: of the images of a folder, as in `stream`.

        Returns:
            The number of images that were learned from.

        Raises:
            InputError: if the classifier is frozen, or an image cannot be read.
        """
        if self.frozen:
            raise InputError("this classifier is frozen; call unfreeze() before learn()")
        several = isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4
        flow = is_flow(images)
        encoded = self._batches(images if several or flow else [images], 16, 0, errors, order)
        done = 0
        with nullcontext(encoded) if flow else self._whole(encoded) as batches:
            for batch in batches:
                with self._lock, as_it_is(self.model.device):
                    self.method.learn(batch)
                    self.seen += len(batch)
                done += len(batch)
        return done

    @contextmanager
    def _whole(self, batches: Iterable[Batch]) -> Iterator[Iterable[Batch]]:
        """Batches of a list, and after an error what was learned before it.

        They are encoded before others have to wait, but for views that depend on what is learned.
        """
        ready = batches if self.auto else list(batches)
        with self._lock:
            learned, seen = self.method.state_dict(), self.seen
            try:
                yield ready
            except BaseException:
                self.method.load_state_dict(learned)
                self.seen = seen
                raise

    def sample(self, image: Image) -> Sample:
        """Encode an image into what a method sees of it: logits and features of its views."""
        return Sample.of(self._alone(image))

    def _alone(self, image: Image) -> Batch:
        """One image, of which an error need not say which one it is."""
        (batch,) = self.encode([(name_of(0, image), image)])
        return batch

    def _batches(
        self,
        images: str | os.PathLike[str] | Iterable[Image],
        size: int,
        workers: int,
        errors: str,
        order: Order = "shuffled",
    ) -> Iterator[Any]:
        failed = self._failing(errors)
        if order not in get_args(Order):
            raise unknown("order of images", order, get_args(Order))
        size, workers = at_least("batch", size, 1), at_least("workers", workers, 0)
        seed = self.views.seed if order == "shuffled" else None
        return self.encode(named_images(images, seed), size, workers, failed)

    def _failing(
        self, errors: str, name: Callable[[str], str] = str
    ) -> Callable[[str, InputError], None]:
        """The handler of images that cannot be read; `name` gives the name of a key."""
        _check_way(errors)
        unread: list[Unread] = []
        if errors == "skip":
            self.unread = unread

        def failed(key: str, error: InputError) -> None:
            if errors == "raise" and isinstance(error, UnreadableFile):
                raise error
            if errors == "raise":  # pixels and bytes do not know their place in the list
                raise InputError(f"{name(key)}: {error}") from error
            unread.append(Unread(name(key), str(error)))

        return failed

    def encode(
        self,
        items: Iterable[tuple[str, Any]],
        size: int = 1,
        workers: int = 0,
        failed: Callable[[str, InputError], None] | None = None,
    ) -> Iterator[Batch]:
        """Encode images, given as (key, image) pairs, into batches for `step`.

        Args:
            items: pairs of a name and an image as `load_image` takes it.
            size: most images in a batch.
            workers: threads that decode and crop in advance.
            failed: called with the name and the error of an image that cannot be read; without it
                the error is raised.
        """
        pipeline = replace(self.pipeline, workers=workers)
        batches = pipeline.batches(items, self.context, size, failed, self._adjustment)
        return pulled(batches, self.model.device)

    def _adjustment(self, logits: Tensor) -> Tensor | None:
        """The bias that the method takes off an image's logits (V, L) now."""
        with self._lock:
            method = self.method
            return method.adjustment(logits)

    def step(self, batch: Batch, learn: bool = True) -> list[Prediction]:
        """Predict the images of a batch from `encode`, and learn from them.

        Nothing is learned if the classifier is frozen or `learn` is False.
        """
        return self.start(batch, learn)()

    def start(self, batch: Batch, learn: bool = True) -> Callable[[], list[Prediction]]:
        """Do the same as `step`, but return a function that fetches the predictions.

        Learning happens at once. On a GPU, fetching later avoids waiting while the image tower is
        busy; a method's answers that are not probabilities are then refused when they are fetched.
        """
        if not isinstance(batch, Batch):
            raise InputError(
                f"{type(batch).__name__} is no Batch; give one of encode(), or sample(IMAGE).batch"
            )
        named = batch.context.classes
        known = named is None or named is self.classes or named == self.classes
        if batch.classes != len(self.classes) or not known:
            others = f"{batch.classes} " + "other " * (batch.classes == len(self.classes))
            raise InputError(
                f"a batch of {others}classes was given to a classifier of {len(self.classes)}; "
                "give one that its own encode() made"
            )
        with self._lock, as_it_is(self.model.device):
            if self.frozen or not learn:
                out = self.method.predict(batch)
            else:
                out = self.method.step(batch)
                self.seen += len(batch)
        keys = batch.keys or [None] * len(batch)
        sent, temperature = out.sent(), self.temperature
        far = out.probs.device.type != "cpu"

        def fetch() -> list[Prediction]:
            out = sent()
            if far:
                check_probs(self.method.name, out.probs, (len(keys), len(self.classes)))
            if temperature != 1:
                out = replace(out, probs=tempered(out.probs, temperature))
            return [
                replace(p, label=self.classes[p.index], source=key, classes=self.classes)
                for p, key in zip(out, keys, strict=True)
            ]

        return fetch

    def calibrate(
        self,
        images: Iterable[Image],
        labels: Iterable[str | int],
        *,
        workers: int = 0,
        errors: Literal["raise", "skip"] = "raise",
        tick: Callable[[int], object] = lambda images: None,
    ) -> Calibration:
        """Calibrate confidences on some labelled images of the kind to come; fifty are enough.

        Afterwards, of the answers given with a confidence of 0.8 about 80 % are right. All
        probabilities are changed by one `temperature`, which leaves the labels as they are and is
        saved with the state. Nothing else is learned from the images.

        Args:
            images: labelled images, as `load_image` takes them.
            labels: the true class of each image, by name or index.
            workers, errors: as in `stream`.
            tick: called with the number of images that were just read.

        Returns:
            The temperature, the accuracy and the confidence before and after.

        Raises:
            InputError: if a label is not one of the classes, or no image can be read.
        """
        try:
            shown = None if isinstance(images, (str, bytes, os.PathLike)) else list(images)
        except TypeError:
            shown = None
        if shown is None:
            raise InputError(f"{brief(images)} is no list of images; give one, with their labels")
        truths = indices_of(labels, self.classes, len(shown))
        failed = self._failing(errors, lambda key: name_of(int(key), shown[int(key)]))
        numbered, batches = ((str(i), image) for i, image in enumerate(shown)), []
        for batch in self.encode(numbered, default_group(self.model), workers, failed):
            batches.append(batch)
            tick(len(batch))
        if not batches:
            raise InputError("there is no image to calibrate with; give some that can be read")
        known = [truths[int(key)] for batch in batches for key in batch.keys]
        with self._lock, as_it_is(self.model.device):
            result = calibrate(self.method, batches, known, learn=not self.frozen)
            self.temperature = result.temperature
        return result

    @property
    def auto(self) -> bool:
        """Whether the number of views depends on the image (views="auto")."""
        return self.pipeline.auto

    @property
    def temperature(self) -> float:
        """The temperature of the probabilities: 1 leaves them as the method gives them.

        `calibrate` sets it.
        """
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = check_temperature(value)

    @property
    def shares(self) -> list[Share]:
        """The estimated share of every class among the images so far, largest first.

        Where all classes occur this is better than counting labels, and about as good where few do:
        the model's bias is taken out, and an unsure image counts in part for several classes. The
        interval does not cover errors that all images share.

        Raises:
            InputError: if no image was seen yet, or the method does not estimate shares.
        """
        with self._lock:
            prior = self.method.class_prior
            shares = None if prior is None else prior.shares
        if self.seen == 0:
            raise InputError("no image was seen yet, so there are no shares; predict some")
        if shares is None or len(shares.share) != len(self.classes):
            raise InputError(
                f"method {self.method.name!r} estimates no shares; use method='tilt', the default"
            )
        rows = zip(self.classes, *(x.tolist() for x in shares), strict=True)
        return sorted((Share(*row) for row in rows), key=lambda s: -s.share)

    # ------------------------------------------------------------------ state

    def freeze(self) -> Classifier:
        """Stop learning: from now on `predict` leaves the state as it is.

        Returns:
            The classifier itself.
        """
        self.frozen = True
        return self

    def unfreeze(self) -> Classifier:
        """Start learning again after `freeze`; returns the classifier itself."""
        self.frozen = False
        return self

    def reset(self) -> None:
        """Forget what was learned from images. The temperature, which comes from labels, stays."""
        with self._lock:
            self.method.reset()
            self.seen, self.lineage = 0, Lineage()

    def begin(self) -> None:
        """Begin another stream with what was learned from the last one.

        With the method `adte`, the model's bias and what the classes look like are kept; how often
        each class came is forgotten. Other methods cannot tell these apart and keep everything.
        """
        with self._lock:
            self._hold(self._learned.for_new_stream())

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the weights of the model, by which saved states are matched to it."""
        return self.model.fingerprint

    @property
    def _learned(self) -> Learned:
        return Learned(self.method, self.seen, self.lineage)

    def _hold(self, learned: Learned) -> None:
        """Note what the method has learned by now."""
        self.seen, self.lineage = learned.seen, learned.lineage

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the model's weights and what was learned, as values for JSON."""
        pixels = self.model.preprocess  # maybe of a class derived from Preprocess
        return {
            "version": __version__,
            "model": self.model.name,
            "fingerprint": self.fingerprint,
            "preprocess": {f.name: getattr(pixels, f.name) for f in fields(Preprocess)},
            "scale": self.context.scale,
            "classes": list(self.classes),
            "class_ids": list(self.model.ids) if isinstance(self.model, FixedClasses) else None,
            "prompts": asdict(self.prompts),
            "method": self.method.name,
            "options": self.method.params,
            "views": asdict(self.views),
            "auto": self.auto,
            "seen": self.seen,
            "frozen": self.frozen,
            "temperature": self.temperature,
            "lineage": asdict(self.lineage),
        }

    def save(self, path: str | os.PathLike[str], *, force: bool = False, **more: Any) -> Path:
        """Save the classifier to one file: settings and what was learned, not the model's weights.

        If saving fails, the old file stays.

        Args:
            path: file to write, such as "shop.adte".
            force: overwrite a file that is not a saved state.
            more: further facts for the file's header, as values for JSON.

        Returns:
            The path that was written.

        Raises:
            InputError: if the file is not a saved state and `force` is False, or cannot be written.
        """
        with self._lock:
            kept = self.method.state_dict(), self.facts
            self._hold(self._learned.noted())
        return self._write(path, *kept, force, more)

    def checkpoint(self, path: str | os.PathLike[str], *, force: bool = False, **more: Any) -> Path:
        """Do the same as `save`, for a file that is only taken up again in this one's place.

        Others may go on from what `save` wrote, so it is noted for `merge`; this is not.
        """
        with self._lock:
            kept = self.method.state_dict(), self.facts
        return self._write(path, *kept, force, more)

    def _write(
        self,
        path: str | os.PathLike[str],
        tensors: dict[str, Tensor],
        facts: dict[str, Any],
        force: bool,
        more: dict[str, Any],
    ) -> Path:
        check_path(path)
        if not force and not is_special(path) and is_others(path, "state"):
            raise InputError(
                f"{os.fspath(path)!r} exists and is not a state of adte; give another name, or "
                "force=True to write over it"
            )
        check_more(more, facts)
        if tensors:
            check_kept(self.method.name, self.method.entries(), tensors)
        return save_state(path, tensors, {**facts, **more})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: str | Model | None = None,
        method: Method | None = None,
        *,
        weights: str | os.PathLike[str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        tokenizer: Any = None,
        runtime: str = "auto",
        threads: int | None = None,
    ) -> Classifier:
        """Load a classifier that `save` wrote.

        Args:
            path: the saved file.
            model: the model itself, needed only if its name cannot be loaded here, as for one from
                `wrap`. It must be the one that was used.
            method: the method, needed only if it is not registered. It must be as it was; a copy
                is used.
            weights, device, dtype, tokenizer, runtime, threads: passed to `load_model`.

        Raises:
            StateError: if the file is damaged, or does not fit the model or method.
            InputError: if the file or the model cannot be loaded.
        """
        tensors, facts = read_learned(path)
        if model is not None:
            check_named(str(path), facts, model if isinstance(model, str) else check_model(model))
        own = read_method(str(path), facts, method)
        prompts, views = Prompts(**facts["prompts"]), Views(**facts["views"])
        how = {"weights": weights, "device": device, "dtype": dtype, "tokenizer": tokenizer,
               "threads": threads}  # fmt: skip
        try:
            towers = make_model(model or facts["model"], runtime, **how)
        except UnknownModel as error:
            raise UnknownModel(
                f"{error}; {str(path)!r} was saved with this model: where its name is not known, "
                "pass the model itself, Classifier.load(PATH, model)"
            ) from error
        classes = facts["classes"]
        if isinstance(towers, FixedClasses) and facts["class_ids"] is not None:
            towers, classes = towers.choose((), facts["class_ids"]).named(classes), ()
        clf = cls(towers, classes, own, templates=prompts, views=views)
        check_same_model(str(path), facts, clf.facts)
        clf.pipeline.auto = facts["auto"]
        clf.method.load_state_dict(tensors, {"L": len(clf.classes)})
        clf._hold(Learned(clf.method, facts["seen"], facts["lineage"]).noted())
        clf.frozen, clf.temperature = facts["frozen"], facts["temperature"]
        return clf

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Replace what was learned by the state in a file that `save` wrote.

        Its classes may come in another order; they are matched by name, with a warning.

        Raises:
            StateError: if the file is of another model, other classes, or another method.
        """
        tensors, facts = read_learned(path)
        order = check_fit(repr(str(path)), facts, self.facts)
        method = self.method.clone()
        method.load_state_dict(tensors, {"L": len(self.classes)})
        learned = Learned(method, facts["seen"], facts["lineage"]).noted()
        if order:
            learned = learned.in_order(order)
        with self._lock:
            self.method.load_state_dict(method.state_dict())
            self._hold(learned)
            self.temperature = facts["temperature"]

    def merge(self, other: Classifier, start: Classifier | None = None) -> None:
        """Add what another classifier of the same kind has learned.

        With a prior that is the mean of predictions, or a plain fixed point, the result is that of
        one stream after the other. What the default learns from an image depends a little on
        earlier ones, so for it the result is nearly that. This classifier's temperature stays.
        Classes may come in another order; they are matched by name, with a warning.

        Args:
            other: the classifier whose state is added.
            start: the state that both began from (`begin`), or were loaded or copied from, as it
                was then. It then counts once; otherwise twice, with a warning.

        Raises:
            StateError: if the two differ in model, classes, prompts, views, method or options, if
                this classifier is frozen, or if none of the two goes back to `start`.
        """
        for given in (other,) if start is None else (other, start):
            if not isinstance(given, Classifier):
                raise InputError(
                    f"{brief(given)} is no classifier; pass one, as in merge(Classifier.load(PATH))"
                )
        if other is self:
            raise StateError("cannot merge a classifier into itself; give another one")
        if self.frozen:
            raise StateError("this classifier is frozen; call unfreeze() before merge()")
        order = check_fit("the other classifier", other.facts, self.facts)
        with other._lock:  # a copy: it may learn meanwhile, or merge this one
            theirs = other._learned.copy().noted()
        if order:
            theirs = theirs.in_order(order)
        common = None
        if start is not None:
            check_one_order(order, check_fit("the start", start.facts, self.facts))
            with start._lock:
                common = start._learned.copy()
        with self._lock:
            if common is not None:
                common.check_start_of(self._learned, theirs)
            self._hold(self._learned.merge(theirs, common, "the other classifier"))

    # ------------------------------------------------------------------ the rest

    def __copy__(self) -> Classifier:
        """The same weights, and a state of its own."""
        new = object.__new__(type(self))
        with self._lock:
            state = self.__getstate__()
            own = {"method": deepcopy(self.method), "unread": list(self.unread)}
            new.__setstate__(state | own)
        return new

    def anew(self) -> Classifier:
        """A classifier of the same model, classes and settings that has learned nothing.

        No text is encoded again.
        """
        new = object.__new__(type(self))
        fresh = {"method": self.method.clone(), "frozen": False, "seen": 0, "unread": []}
        fresh |= {"lineage": Lineage(), "_temperature": 1.0}
        new.__setstate__(self.__dict__ | fresh)
        return new

    def __getstate__(self) -> dict[str, Any]:
        """The parts of a copy; it and this one hold the same state from now on."""
        with self._lock:
            self._hold(self._learned.noted())
            return {k: v for k, v in self.__dict__.copy().items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def __setattr__(self, name: str, value: Any) -> None:
        """Class weights, pipeline and state are made of the rest, and would not follow it."""
        if name in MADE_OF and name in self.__dict__:
            raise InputError(
                f"the {name} of a classifier cannot be changed, since what it has learned and made "
                "of them would not follow; make another Classifier"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        state = "frozen" if self.frozen else "learning"
        sure = (
            "" if self.temperature == 1 else f", confidence at temperature {self.temperature:.3g}"
        )
        return (
            f"Classifier({brief(self.model.name)}, {len(self.classes)} classes, "
            f"{self.method.name!r}, {state}, {self.seen} images seen{sure})"
        )


def _check_way(errors: str) -> None:
    if errors not in ("raise", "skip"):
        raise unknown("way with errors", errors, ("raise", "skip"))
