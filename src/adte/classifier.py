"""Classifier: a model, its classes, a method and its state. What users hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import torch

from adte.data.images import find_images
from adte.errors import InputError, StateError
from adte.methods import Method, Prediction, Sample, create_method
from adte.models import Model, load_model
from adte.prompts import SINGLE, Prompts, Templates, check_classes, class_weights
from adte.state import load_state, save_state
from adte.views import Views, load_image

__all__ = ["Classifier"]

Image = Any  # a path, bytes, a PIL image, an array or a tensor: what `load_image` takes


class Classifier:
    """A classifier that gets better while it is used.

    Args:
        model: a name for `load_model`, or a `Model`.
        classes: class names; classes are told apart by index, so names may repeat.
        method: a name for `create_method`, or a `Method`.
        templates: prompt templates with {} for the name, a set's name ("seven"), or `Prompts`
            with descriptions; their vectors are averaged.
        views: how many views, or a `Views` with all its options.
        seed: of the views. The views of an image depend on it and on the pixels alone, so the
            answer does not depend on batch, order or worker, except through what was learned.
        options: of the method, when it is given by name.

    >>> clf = Classifier("tiny", classes=["cat", "dog", "car"])      # doctest: +SKIP
    >>> clf.predict("photo.jpg").label                               # doctest: +SKIP
    'cat'
    """

    def __init__(
        self,
        model: str | Model = "tiny",
        classes: Sequence[str] = (),
        method: str | Method = "adte",
        *,
        templates: Templates | Prompts = SINGLE,
        views: int | Views = 64,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.classes = check_classes(classes)
        self.prompts = templates if isinstance(templates, Prompts) else Prompts.of(templates)
        self.views = Views(count=views, seed=seed) if isinstance(views, int) else views
        self.model: Model = load_model(model) if isinstance(model, str) else model.eval()
        if isinstance(method, Method):
            if options:
                raise InputError(
                    f"option {next(iter(options))!r} goes with a method given by name; "
                    "this one was given ready made"
                )
            self.method = method
        else:
            self.method = create_method(method, **options)
        self.frozen = False
        self.class_weights = class_weights(self.model, self.classes, self.prompts)

    # ------------------------------------------------------------------ predicting

    @overload
    def predict(self, image: list[Image] | tuple[Image, ...]) -> list[Prediction]: ...
    @overload
    def predict(self, image: Image) -> Prediction: ...
    def predict(self, image: Any) -> Any:
        """Predict one image, or each of a list or of a batch (N, H, W, 3), and learn from it."""
        if isinstance(image, (list, tuple)) or getattr(image, "ndim", 0) == 4:
            return list(self.stream(image))
        return self._step(self.sample(image))

    def stream(self, images: str | os.PathLike[str] | Iterable[Image]) -> Iterator[Prediction]:
        """Predictions for a folder, or for any iterable of images, in order and one at a time."""
        source = find_images(images) if isinstance(images, (str, os.PathLike)) else images
        for image in source:
            yield self._step(self.sample(image))

    predict_many = stream

    def learn(self, image: Image) -> None:
        """Learn from an image without predicting it."""
        if self.frozen:
            raise InputError("this classifier is frozen; call unfreeze() before learn()")
        self.method.learn(self.sample(image))

    def sample(self, image: Image) -> Sample:
        """What the method sees of an image: logits and features of its views."""
        pixels = self.views(load_image(image), self.model.preprocess)  # (V, 3, H, W)
        with torch.no_grad():
            features = self.model.encode_image(pixels.to(self.model.device, self.model.dtype))
            logits = self.model.logits(features, self.class_weights)
        return Sample(
            logits,
            features,
            self.class_weights,
            self.model.logit_scale,
            pixels=pixels if "pixels" in self.method.needs else None,
            model=self.model,
            classes=self.classes,
        )

    def _step(self, sample: Sample) -> Prediction:
        p = self.method.predict(sample) if self.frozen else self.method.step(sample)
        return replace(p, label=self.classes[p.index])

    # ------------------------------------------------------------------ state

    def freeze(self) -> Classifier:
        """Stop learning: from here on `predict` leaves the state as it is."""
        self.frozen = True
        return self

    def unfreeze(self) -> Classifier:
        """Learn again."""
        self.frozen = False
        return self

    def reset(self) -> None:
        """Forget what was learned from the stream."""
        self.method.reset()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all but the model's weights to one file. A failed save leaves the old one."""
        facts = {
            "version": version("adte"),
            "model": self.model.name,
            "classes": self.classes,
            "prompts": asdict(self.prompts),
            "method": self.method.name,
            "options": self.method.params,
            "views": asdict(self.views),
            "frozen": self.frozen,
        }
        return save_state(path, self.method.state_dict(), facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | None = None) -> Classifier:
        """A classifier as it was saved; pass the model where its name cannot be loaded here."""
        tensors, facts = load_state(path)
        if model is not None and model.name != facts["model"]:
            raise StateError(
                f"{str(path)!r} was saved with model {facts['model']!r}, but "
                f"{model.name!r} was passed; pass the same model"
            )
        said = facts["prompts"]
        views: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in facts["views"].items()
        }
        clf = cls(
            model or facts["model"],
            facts["classes"],
            create_method(facts["method"], **facts["options"]),
            templates=Prompts(**{**said, "templates": tuple(said["templates"])}),
            views=Views(**views),
        )
        clf.method.load_state_dict(tensors)
        clf.frozen = facts["frozen"]
        return clf

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Take over what another classifier of the same classes and method has learned."""
        tensors, facts = load_state(path)
        self._check_fit(str(path), facts)
        self.method.load_state_dict(tensors)

    def merge(self, other: Classifier) -> None:
        """Take in what a classifier of the same kind learned elsewhere."""
        if other.classes != self.classes:
            raise StateError(
                "cannot merge classifiers with different classes; "
                "both must have the same names in the same order"
            )
        self.method.merge(other.method)

    def _check_fit(self, path: str, facts: dict[str, Any]) -> None:
        if facts["classes"] != self.classes:
            theirs, ours = facts["classes"], self.classes
            where = next(
                (i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None
            )
            detail = (
                f"class {where} is {theirs[where]!r} there and {ours[where]!r} here"
                if where is not None
                else f"{len(theirs)} classes there, {len(ours)} here"
            )
            raise StateError(
                f"{path!r} was saved for other classes ({detail}); "
                "use the classes it was saved with"
            )
        for key, mine in (("model", self.model.name), ("method", self.method.name)):
            if facts[key] != mine:
                raise StateError(
                    f"{path!r} was saved with {key} {facts[key]!r}, this classifier has "
                    f"{mine!r}; use the same {key}"
                )

    def __repr__(self) -> str:
        state = "frozen" if self.frozen else "learning"
        return (
            f"Classifier({self.model.name!r}, {len(self.classes)} classes, {state}, {self.method})"
        )
