"""The input of a method; its output is in `adte.core.prediction`.

A `Batch` is what the way of an image ends in. A `Sample` is one image of a person who brings logits
of their own; it is a batch of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import Tensor

from adte.core.errors import InputError, brief
from adte.core.machine import head_device, threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adte.models.base import Model

    Numbers = Tensor | NDArray[Any] | Sequence[Any]

__all__ = ["Batch", "Context", "Sample", "check_unit"]

PARTS = ("logits", "features", "pixels")  # of a batch, by image and view
LONG = 1.02  # of what should have length 1, with the errors of half precision


@dataclass(frozen=True, eq=False, init=False)
class Context:
    """The common ground of all images of a stream: the model and its class weights.

    The logits of an image are scale · features · class_weightsᵀ + bias.

    Attributes:
        class_weights: unit vectors of the classes (L, D).
        scale: factor on the cosine, 100 for CLIP.
        model: the model, for methods that need one of its towers.
        classes: names of the classes, for methods that need them.
        bias: number added to every logit.
        unit: whether features are unit vectors. The features of a model with fixed classes are not:
            they are its logits.
    """

    class_weights: Tensor | None
    scale: float
    model: Model | None
    classes: Sequence[str] | None
    bias: float
    unit: bool

    def __init__(
        self,
        class_weights: Numbers | None = None,
        scale: SupportsFloat = 1.0,
        model: Model | None = None,
        classes: Sequence[str] | None = None,
        bias: SupportsFloat = 0.0,
        unit: bool = True,
    ) -> None:
        self.__dict__.update(
            class_weights=_maybe(class_weights, "class_weights"),
            scale=_finite(scale, "scale"),
            model=model,
            classes=None if classes is None else tuple(classes),
            bias=_finite(bias, "bias"),
            unit=unit,
        )

    @staticmethod
    def of(model: Model, class_weights: Tensor | None, classes: Sequence[str]) -> Context:
        """The context of a model and of class weights made with its text tower."""
        scale, bias = float(model.logit_scale), float(model.logit_bias)
        weights = None if class_weights is None else class_weights.to(head_device(model.device))
        return Context(weights, scale, model, classes, bias, model.unit)

    def check(self) -> None:
        """Raise an `InputError` if class weights are not finite, or no unit vectors."""
        if self.class_weights is None:
            return
        least, most = _lengths(self.class_weights)
        if not math.isfinite(most):
            raise InputError(
                "class weights hold NaN or infinite values; check the text tower's output"
            )
        if self.unit:
            _check_unit("class weights", least, most)

    def same(self, other: Context) -> bool:
        """Whether both have the same model, class names and class weights."""
        return self is other or (
            self.model is other.model
            and self.class_weights is other.class_weights
            and (self.scale, self.bias, self.unit) == (other.scale, other.bias, other.unit)
            and (self.classes is other.classes or self.classes == other.classes)
        )

    @threads(1)
    def batch(
        self, features: Numbers, pixels: Numbers | None = None, keys: tuple[str, ...] = ()
    ) -> Batch:
        """Make a batch from encoded features (B, V, D).

        Features are rounded to float16, the precision of a cache, and brought back to unit length.
        So they give the same numbers whether they come from the image tower or from a cache. On a
        CPU the logits of an image do not depend on the other images of the batch.

        Args:
            features: features of V views of B images.
            pixels: views of the images (B, V, 3, H, W), for methods that need them.
            keys: a name for every image, or none.
        """
        if self.class_weights is None and not self.unit:  # they are the logits
            x = _tensor(features, "features").half().float()
            return Batch(self.scale * x + self.bias, x, pixels, self, keys)
        if self.class_weights is None:
            raise InputError(
                "a context without class weights makes no logits of features; pass "
                "Context(class_weights, scale)"
            )
        shape = tuple((x := _tensor(features, "features")).shape)
        if len(shape) != 3 or shape[-1:] != self.class_weights.shape[1:]:
            raise InputError(
                f"features of shape {shape} do not go with class weights of shape "
                f"{tuple(self.class_weights.shape)}; pass (images, views, dimensions) and "
                "(classes, dimensions)"
            )
        x = x.half().float()
        if self.unit:
            x = torch.nn.functional.normalize(x, dim=-1)
        weights = self.class_weights.to(x)
        tuned = torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad)
        if x.device.type != "cpu":
            logits = self.scale * x @ weights.T
        elif tuned:
            logits = torch.stack([self.scale * f @ weights.T for f in x])
        else:  # the same in place: at 20,000 classes an image takes 5 MB
            logits = x.new_empty(*x.shape[:-1], len(weights))
            for f, out in zip(x, logits, strict=True):
                torch.mm(self.scale * f, weights.T, out=out)
        if self.bias or tuned:
            logits = logits + self.bias if tuned else logits.add_(self.bias)
        return Batch(logits, x, pixels, self, keys)


@dataclass(frozen=True, eq=False, init=False)
class Batch:
    """Some encoded images of a stream, in order: what a method sees of them, without labels.

    Arrays and nested lists are converted to tensors. B is the number of images, V that of views,
    L that of classes, D the dimension of features.

    Attributes:
        logits: logits of every view (B, V, L); view 0 is the base view.
        features: features of every view (B, V, D), unit vectors; None if there are none.
        pixels: normalised views (B, V, 3, H, W), for methods that need them.
        context: the model and class weights that the images have in common.
        keys: a name for every image, or none.
    """

    logits: Tensor
    features: Tensor | None
    pixels: Tensor | None
    context: Context
    keys: tuple[str, ...]

    def __init__(
        self,
        logits: Numbers,
        features: Numbers | None = None,
        pixels: Numbers | None = None,
        context: Context | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        z = _tensor(logits, "logits")
        if z.ndim != 3 or 0 in z.shape:
            raise InputError(
                f"logits of shape {tuple(z.shape)} are not (images, views, classes); "
                "pass at least one of each"
            )
        x, views = _maybe(features, "features"), _maybe(pixels, "pixels")
        for name, rows, like in (
            ("features", x, "views, dimensions"),
            ("pixels", views, "views, 3, height, width"),
        ):
            if rows is not None and (
                rows.ndim != like.count(",") + 2 or rows.shape[:2] != z.shape[:2]
            ):
                raise InputError(
                    f"{name} of shape {tuple(rows.shape[1:])} do not go with logits of shape "
                    f"{tuple(z.shape[1:])}; pass ({like}), one row a view"
                )
        if isinstance(keys, str) or len(keys) not in (0, len(z)):
            raise InputError(
                f"keys={brief(keys)} do not name {len(z)} images; give a name for every "
                "one, or none"
            )
        self.__dict__.update(
            logits=z, features=x, pixels=views, context=context or Context(), keys=tuple(keys)
        )
        weights = self.context.class_weights
        if weights is None:
            return
        fits = weights.ndim == 2 and len(weights) == self.classes
        if not fits or (x is not None and weights.shape[1] != x.shape[-1]):
            dims = "dimensions" if x is None else x.shape[-1]
            raise InputError(
                f"class weights of shape {tuple(weights.shape)} do not go with the logits and "
                f"features; pass them as (classes, dimensions) = ({self.classes}, {dims})"
            )

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice | int) -> Batch:
        """Some of the images, as a batch."""
        if not isinstance(rows, slice):
            i = index(rows)
            if not -len(self) <= i < len(self):
                raise IndexError(f"image {i} of a batch of {len(self)}")
            rows = slice(i, i + 1 or None)
        cut: dict[str, Any] = {
            name: None if (x := getattr(self, name)) is None else x[rows] for name in PARTS
        }
        return replace(self, keys=self.keys[rows], **cut)

    def __iter__(self) -> Iterator[Batch]:
        """The images, each as a batch of one."""
        return (self[i] for i in range(len(self)))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.logits.shape[-1]

    def require(self, name: str) -> Any:
        """An attribute that a method needs; an `InputError` if it is None."""
        value = getattr(self, name) if hasattr(self, name) else getattr(self.context, name)
        if name == "classes":
            value = self.context.classes
        if value is None:
            raise InputError(
                f"this method needs {name.replace('_', ' ')}, but the sample has none; "
                f"pass Sample(logits, {name}=…)"
            )
        return value

    def check(self) -> None:
        """Raise an `InputError` if any value is NaN or infinite."""
        # The extremes of what holds a NaN are NaN: no copy of 5 MB an image at 20,000 classes.
        ends = [
            torch.stack(x.detach().aminmax()).float()
            for x in (self.logits, self.features, self.pixels)
            if x is not None
        ]
        if bool(torch.isfinite(torch.cat([e.to(self.logits.device) for e in ends])).all()):
            return
        for name in PARTS:
            x = getattr(self, name)
            if x is None or bool((fine := torch.isfinite(x).flatten(1).all(1)).all()):
                continue
            named = zip(self.keys, fine.tolist(), strict=False)
            bad = ", ".join([repr(key) for key, good in named if not good][:3])
            raise InputError(
                f"{name}{bad and f' of {bad}'} hold NaN or infinite values; check the model's "
                "output (half-precision overflow is the usual cause)"
            )

    @staticmethod
    def join(parts: Sequence[Batch]) -> Batch:
        """Put batches of the same shape and context together, in order."""
        first = parts[0]
        if len(parts) == 1:
            return first
        joined: dict[str, Any] = {
            name: None if getattr(first, name) is None
            else torch.cat([getattr(p, name) for p in parts])
            for name in PARTS
        }  # fmt: skip
        keys = tuple(k for p in parts for k in p.keys) if all(p.keys for p in parts) else ()
        return replace(first, keys=keys, **joined)

    @staticmethod
    def runs(parts: Iterable[Batch], most: int) -> Iterator[Batch]:
        """Join neighbouring batches that fit together, up to `most` images each."""
        group: list[Batch] = []
        for p in parts:
            if group and (sum(map(len, group)) + len(p) > most or not _alike(group[0], p)):
                yield Batch.join(group)
                group = []
            group.append(p)
        if group:
            yield Batch.join(group)


def _alike(a: Batch, b: Batch) -> bool:
    for name in PARTS:
        x, y = getattr(a, name), getattr(b, name)
        if (x is None) != (y is None):
            return False
        if x is not None and (x.shape[1:], x.dtype, x.device) != (y.shape[1:], y.dtype, y.device):
            return False
    return a.context.same(b.context)


def check_unit(features: Tensor) -> None:
    """Raise an `InputError` for features that are no unit vectors."""
    _check_unit("features", *_lengths(features))


def _lengths(x: Tensor) -> tuple[float, float]:
    """The shortest and the longest vector."""
    lengths = torch.linalg.vector_norm(x.detach().float(), dim=-1)
    least, most = torch.stack(lengths.aminmax()).tolist()
    return least, most


def _check_unit(name: str, least: float, most: float) -> None:
    if least < 2 - LONG or most > LONG:
        raise InputError(
            f"{name} of lengths {least:.3g} to {most:.3g} are no unit vectors; divide each by its "
            "length, or say unit=False if they are none by intent"
        )


def _tensor(x: Any, name: str) -> Tensor:
    """A tensor of what a person brings: a tensor, an array, or nested lists of numbers."""
    try:
        out: Tensor = x if isinstance(x, Tensor) else torch.as_tensor(x)
        if out.is_complex():
            raise TypeError("they are complex")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} cannot be read as numbers ({error}); pass a tensor, an array or nested lists "
            "of equal length"
        ) from error
    # Whole numbers and float8 have no arithmetic that would do.
    return out if out.is_floating_point() and out.dtype.itemsize > 1 else out.float()


def _maybe(x: Any, name: str) -> Tensor | None:
    return None if x is None else _tensor(x, name)


def _finite(x: Any, name: str) -> float:
    """A number of a context."""
    try:
        value = math.nan if isinstance(x, str) else float(x)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name}={brief(x)} of a context is no finite number")
    return value


@dataclass(frozen=True, eq=False, init=False)
class Sample:
    """One image, given by logits of your own; what it holds may be tensors, arrays or nested lists.

    Logits are enough for many methods; `adte methods` lists what each needs. If features are given,
    logits = scale · features · class_weightsᵀ + bias.

    Attributes:
        logits: logits of every view (V, L); view 0 is the base view.
        features: features of every view (V, D), unit vectors.
        class_weights: unit vectors of the classes (L, D).
        scale: factor on the cosine, 100 for CLIP.
        pixels: normalised views (V, 3, H, W).
        model: the model, for methods that need one of its towers.
        classes: names of the classes, for methods that need them.
        bias: number added to every logit.
        unit: whether features are unit vectors, as in `Context`.
    """

    logits: Tensor
    features: Tensor | None
    class_weights: Tensor | None
    scale: float
    pixels: Tensor | None
    model: Model | None
    classes: Sequence[str] | None
    bias: float
    unit: bool

    def __init__(
        self,
        logits: Numbers,
        features: Numbers | None = None,
        class_weights: Numbers | None = None,
        scale: SupportsFloat = 1.0,
        pixels: Numbers | None = None,
        model: Model | None = None,
        classes: Sequence[str] | None = None,
        bias: SupportsFloat = 0.0,
        unit: bool = True,
    ) -> None:
        z = _tensor(logits, "logits")
        if z.ndim != 2 or 0 in z.shape:
            raise InputError(
                f"logits of shape {tuple(z.shape)} are not (views, classes); "
                "pass one row a view and at least one of each"
            )
        self.__dict__.update(
            logits=z, features=_maybe(features, "features"),
            class_weights=_maybe(class_weights, "class_weights"), scale=scale,
            pixels=_maybe(pixels, "pixels"), model=model, classes=classes, bias=bias, unit=unit,
        )  # fmt: skip

    @property
    def batch(self) -> Batch:
        """The image as a batch of one."""
        features, pixels = (None if x is None else x[None] for x in (self.features, self.pixels))
        context = Context(
            self.class_weights, self.scale, self.model, self.classes, self.bias, self.unit
        )
        return Batch(self.logits[None], features, pixels, context)

    @staticmethod
    def of(batch: Batch, i: int = 0) -> Sample:
        """One image of a batch."""
        c, features, pixels = batch.context, batch.features, batch.pixels
        return Sample(
            batch.logits[i], None if features is None else features[i], c.class_weights, c.scale,
            None if pixels is None else pixels[i], c.model, c.classes, c.bias, c.unit,
        )  # fmt: skip
