"""The contract of models: what every one does, and what it says that it offers.

A vision-language model has two towers into one unit sphere. A classifier of fixed classes has an
image tower alone; its features are its logits. Callers ask `model.offers`, or let `model.require`
name what is lacking.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from adte.core.errors import InputError, brief
from adte.core.functional import wide
from adte.core.machine import head_device, threads, threads_for
from adte.images import Preprocess
from adte.models._weights import fingerprint

__all__ = ["FixedClasses", "ImageClassifier", "Model", "check_features", "fitted", "no_prompts"]

F = TypeVar("F", bound="FixedClasses")

_INNER = {"image tower", "embeddings"}  # what a method computes in, rather than with
_ALWAYS = {"logits", "pixels"}  # what a method may need and every model leads to
_SAFE = (torch.float32, torch.float64, torch.bfloat16)  # casts that leave a fingerprint as it is


class Runner(Protocol):
    """Another forward of an image tower, for inference, such as `fast`."""

    name: str

    def __call__(self, tower: Any, pixels: Tensor) -> Tensor | None:
        """Pixels (N, 3, S, S) to what the tower gives (N, D); None where it cannot stand for it."""


class Model(nn.Module):
    """A model that encodes images, and usually texts, into features.

    `load_model` and `wrap` return one. To bring one of your own, derive a class from it. A
    vision-language model defines `encode_image` and `encode_text`, which return unit vectors of the
    same dimension; for prompt tuning it also defines `token_embeddings` and `encode_embeddings`.
    All of them let gradients through; call them within `torch.inference_mode()` if you need none.

    Attributes:
        name: the name that `load_model` was given; it is saved with a classifier's state.
        dim: dimension D of the features.
        preprocess: how pixels must be prepared.
        logit_scale: factor on the cosine (100 for CLIP), already exponentiated.
        logit_bias: number added to every logit, 0 except for SigLIP; softmax is not affected.
        unit: whether features are unit vectors.
        runner: faster code for the image tower, used where gradients are off; or None.
        threads: threads that compute it on a CPU; None chooses by the size of the work.
    """

    name: str
    dim: int
    preprocess: Preprocess
    logit_scale: float
    logit_bias: float = 0.0
    unit: bool = True
    runner: Runner | None = None
    threads: int | None = None

    _kind: str = ""  # what error messages add to its name
    _loaded: str = ""  # the fingerprint of the weights as they were loaded, before any cast

    @property
    def offers(self) -> frozenset[str]:
        """The things that the model can provide; the `needs` of methods have the same names.

        features       features of images, to be compared with class weights
        class weights  unit vectors of classes, made from texts
        image tower    from pixels to features, with gradients
        text tower     from texts to unit vectors, with gradients
        embeddings     the text tower from token embeddings on, for prompt tuning
        """
        own, found = type(self), {"features", "image tower"}
        if own.encode_text is not Model.encode_text:
            found |= {"text tower", "class weights"}
        if own.encode_embeddings is not Model.encode_embeddings:
            found |= {"embeddings"}
        return frozenset(found)

    def require(self, needs: Iterable[str], by: str = "this") -> None:
        """Raise an `InputError` unless the model offers all of `needs`.

        Args:
            needs: what is needed, see `offers`.
            by: who needs it, for the message.
        """
        if lacking := sorted(set(needs) - self.offers - _ALWAYS):
            raise self._without(" and ".join(lacking), by)
        if head_device(self.device) != self.device and not _INNER.isdisjoint(needs):
            raise InputError(
                f"{by} computes within the model, which cannot be done on {self.device}, a device "
                "without float64; choose device='cpu', or a method that needs features alone"
            )

    def _without(self, what: str, by: str) -> InputError:
        return InputError(
            f"{by} needs {what}, which model {self.name!r}{self._kind} does not offer; choose "
            "another model, such as CLIP"
        )

    @property
    def _visual(self) -> Any:
        """The library's module behind `encode_image`, where it has one that a runner can read."""
        return None

    def _run(self, pixels: Tensor) -> Tensor | None:
        """The tower's output by the runner; None where the library's own forward is wanted."""
        return None if self.runner is None else self.runner(self._visual, pixels)

    @abstractmethod
    def encode_image(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels (N, 3, H, W) into features (N, D); unit vectors, if `unit`."""

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Encode N texts into unit vectors (N, D)."""
        raise self._without("a text tower", "reading texts")

    def token_embeddings(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Padded token ids (N, T) of texts, and their embeddings (N, T, w) without positions.

        With `encode_embeddings` this allows prompt tuning; not every model has it.
        """
        raise self._without("embeddings", "prompt tuning")

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Do the rest of `encode_text`, from ids (N, T) and embeddings (N, T, w) to (N, D)."""
        raise self._without("embeddings", "prompt tuning")

    def logits(self, features: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Logits (…, L) of features (…, D), in float32 or wider.

        Args:
            features: what `encode_image` returned.
            class_weights: unit vectors of the classes (L, D); by default the model's own, which
                only a model with fixed classes has.
        """
        if class_weights is None:
            class_weights = self.class_weights()
        features = wide(features)
        cosines = features @ class_weights.to(features).T
        return self.logit_scale * cosines + self.logit_bias

    def class_weights(self) -> Tensor:
        """Class weights (L, D) of a model with fixed classes; other models make them from texts."""
        raise InputError(
            f"model {self.name!r} has no classes of its own; make the weights of class names, with "
            "adte.models.prompts.class_weights(model, names)"
        )

    @property
    def fingerprint(self) -> str:
        """A digest of the weights; the same weights have the same one on any device.

        Weights are rounded to bfloat16 first, so that copies in float32 and bfloat16 agree. In a
        dtype that rounds otherwise, such as float16, it is the digest of the weights as they were
        when `load_model` loaded them. A model without tensors has to define one of its own.
        """
        if not self.state_dict():
            raise InputError(
                f"model {self.name!r} holds no tensors that would tell its weights from others; "
                "define a property `fingerprint`, such as a digest of what it computes with"
            )
        return self._loaded if self._loaded and self.dtype not in _SAFE else fingerprint(self)

    def at_work(self, inputs: int) -> AbstractContextManager[None]:
        """Within the block torch computes on the threads that so many images or texts are worth."""
        if self.device.type != "cpu":
            return nullcontext()
        if self.threads is not None:
            return threads(self.threads)
        return threads(threads_for(inputs * sum(p.numel() for p in self.parameters())))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        found = next(self.parameters(), None)
        return torch.device("cpu") if found is None else found.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        found = next(self.parameters(), None)
        return torch.float32 if found is None else found.dtype


def check_features(model: Model, verb: str, got: Any, count: int) -> Tensor:
    """The output of a tower, if it is one row of features for each of its inputs."""
    shape = (count, model.dim)
    if not isinstance(got, Tensor) or got.shape != shape:
        what = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        raise InputError(
            f"{verb} of model {model.name!r} gave {what} for {count} inputs; it returns a tensor "
            f"{shape}, as dim={model.dim} says"
        )
    return got


def no_prompts(model: Model) -> InputError:
    """The error for prompts and a model of fixed classes."""
    return InputError(
        f"model {model.name!r} has fixed classes and reads no prompts; leave templates and "
        "descriptions out"
    )


def fitted(model: Model, names: Sequence[str], ids: Sequence[str] = ()) -> Model:
    """The model for a data set's classes: one of fixed classes is narrowed to them."""
    return model.choose(names, ids) if isinstance(model, FixedClasses) else model


class FixedClasses(Model):
    """A model with a fixed set of classes and no text tower, such as an ImageNet classifier.

    A subclass defines `classify`. The features of an image are its logits, and the class weights
    are the identity, so that methods that work on logits, pixels or the image tower work here too.
    `choose` restricts the model to the classes of a data set.

    Attributes:
        classes: names of the classes.
        ids: stable ids of the classes, such as those of WordNet, or their numbers as text.
    """

    logit_scale = 1.0
    unit = False
    _kind = ", which has fixed classes and no text tower,"

    def __init__(
        self, name: str, classes: Sequence[str], ids: Sequence[str], preprocess: Preprocess
    ) -> None:
        super().__init__()
        self.name, self.preprocess = name, preprocess
        self.classes, self.ids = tuple(classes), tuple(ids)
        self.dim = len(self.classes)
        self.columns: list[int] | None = None  # of its outputs, those that were chosen

    @abstractmethod
    def classify(self, pixels: Tensor) -> Tensor:
        """Logits (N, L) of all classes, in float32 or wider, of normalised pixels (N, 3, H, W)."""

    @property
    def offers(self) -> frozenset[str]:
        return frozenset({"image tower"})

    def encode_image(self, pixels: Tensor) -> Tensor:
        z = self.classify(pixels)
        return z if self.columns is None else z[:, self.columns]

    def logits(self, features: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """The features themselves, which are logits already.  (…, L) → (…, L)"""
        if features.shape[-1] != self.dim:
            raise InputError(
                f"features of shape {tuple(features.shape)} are not logits over the {self.dim} "
                f"classes of model {self.name!r}; make them with encode_image"
            )
        if class_weights is not None:
            return super().logits(features, class_weights)
        return wide(features)

    def class_weights(self) -> Tensor:
        return torch.eye(self.dim)

    def choose(self: F, names: Sequence[str], ids: Sequence[str] = ()) -> F:
        """The same model, with shared weights, for some of its classes in this order.

        Classes are found by id, or else by name. A name that several classes have is an error,
        unless all classes are asked for.
        """
        for wanted, known in ((ids, self.ids), (names, self.classes)):
            place = {k: i for i, k in enumerate(known)}
            if not wanted or not all(w in place for w in wanted):
                continue
            if tuple(wanted) == known:
                return self.narrowed([*range(len(known))])
            if shared := next((w for w in wanted if known.count(w) > 1), None):
                raise InputError(
                    f"{known.count(shared)} classes of model {self.name!r} are called {shared!r}; "
                    f"ask for them by id, such as {self.ids[known.index(shared)]!r}"
                )
            return self.narrowed([place[w] for w in wanted])
        missing = next((n for n in names if n not in self.classes), "")
        raise InputError(
            f"class {missing!r} is not among the {len(self.classes)} fixed classes of model "
            f"{self.name!r}, {brief(list(self.classes))}; choose data of its classes, or a "
            "vision-language model"
        )

    def named(self: F, names: Sequence[str]) -> F:
        """The same model, with shared weights, whose classes are called so, in order."""
        new = copy.copy(self)
        new.classes = tuple(names)
        return new

    def narrowed(self: F, at: Sequence[int]) -> F:
        """The same model, with shared weights, for the classes at these places."""
        new = copy.copy(self)  # the weights are shared
        new.columns = [*at] if self.columns is None else [self.columns[i] for i in at]
        new.classes = tuple(self.classes[i] for i in at)
        new.ids = tuple(self.ids[i] for i in at)
        new.dim = len(at)
        return new


class ImageClassifier(FixedClasses):
    """A network from pixels to logits, `net`, with the names of its outputs."""

    net: Any

    def __init__(
        self,
        net: nn.Module,
        name: str,
        classes: Sequence[str],
        ids: Sequence[str],
        preprocess: Preprocess,
    ) -> None:
        super().__init__(name, classes, ids, preprocess)
        self.net = net

    def classify(self, pixels: Tensor) -> Tensor:
        return wide(self.net(pixels.to(self.dtype)))
