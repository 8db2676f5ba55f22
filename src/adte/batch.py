"""What a method sees of images, and what it says of them.

A `Batch` is what the way of an image ends in. A `Sample` is one image of a person who brings logits
of their own; it is a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adte.errors import InputError

if TYPE_CHECKING:
    from adte.models.base import Model

__all__ = ["Batch", "Context", "Prediction", "Predictions", "Sample"]


@dataclass(frozen=True, eq=False)
class Context:
    """What holds for all images of a stream.

    Attributes:
        class_weights: (L, D) unit vectors; logits = scale · features · class_weightsᵀ + bias.
        unit: whether features are unit vectors; those of a model with fixed classes are its logits.
        model: the towers, and classes: the names; only for methods that declare the need.
    """

    class_weights: Tensor | None = None
    scale: float = 1.0
    model: Model | None = None
    classes: Sequence[str] | None = None
    bias: float = 0.0
    unit: bool = True

    @staticmethod
    def of(model: Model, class_weights: Tensor, classes: Sequence[str]) -> Context:
        """That of a model with class weights of its text tower."""
        scale, bias = float(model.logit_scale), float(model.logit_bias)
        return Context(class_weights.to(model.device), scale, model, classes, bias, model.unit)

    def same(self, other: Context) -> bool:
        """Whether both mean the same model, names and weights."""
        return self is other or (
            self.model is other.model
            and self.class_weights is other.class_weights
            and (self.scale, self.bias, self.unit) == (other.scale, other.bias, other.unit)
            and (self.classes is other.classes or self.classes == other.classes)
        )

    def batch(
        self, features: Tensor, pixels: Tensor | None = None, keys: tuple[str, ...] = ()
    ) -> Batch:
        """A batch from encoded features (B, V, D), in the precision that a cache keeps.

        Features are rounded to float16 and brought back to unit length, whether they come from the
        tower or from a cache, so that both give the same numbers. On a CPU the logits of each image
        are a product of their own, whose numbers do not depend on its company.
        """
        assert self.class_weights is not None
        x = features.half().float()
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


@dataclass(frozen=True, eq=False)
class Batch:
    """Some images of a stream, in order. Labels never reach a method.

    Attributes:
        logits: (B, V, L); view 0 is the base view.
        features: (B, V, D) unit vectors.
        pixels: (B, V, 3, H, W) normalised, where a method asked for them.
        keys: a name for every image, or nothing.
    """

    logits: Tensor
    features: Tensor | None = None
    pixels: Tensor | None = None
    context: Context = field(default_factory=Context)
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.logits.ndim != 3 or 0 in self.logits.shape:
            raise InputError(
                f"logits of shape {tuple(self.logits.shape)} are not (images, views, classes); "
                "pass at least one of each"
            )
        for name, x in (("features", self.features), ("pixels", self.pixels)):
            if x is not None and x.shape[:2] != self.logits.shape[:2]:
                raise InputError(
                    f"{name} of shape {tuple(x.shape[1:])} do not go with logits of shape "
                    f"{tuple(self.logits.shape[1:])}; pass one row a view"
                )

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice | int) -> Batch:
        """Some of the images, as a batch."""
        if isinstance(rows, int):
            rows = slice(rows, rows + 1 or None)
        cut: dict[str, Any] = {
            name: None if (x := getattr(self, name)) is None else x[rows]
            for name in ("logits", "features", "pixels")
        }
        return replace(self, keys=self.keys[rows], **cut)

    def __iter__(self) -> Iterator[Batch]:
        """The images, each as a batch of one."""
        return (self[i] for i in range(len(self)))

    @property
    def classes(self) -> int:
        return self.logits.shape[-1]

    def require(self, name: str) -> Any:
        """A part that a method cannot do without."""
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
        """Refuse NaN and infinity, with one question to the device for the whole batch."""
        # The extremes of what holds a NaN are NaN: no copy of 5 MB an image at 20,000 classes.
        ends = [
            torch.stack(x.detach().aminmax()).float()
            for x in (self.logits, self.features, self.pixels)
            if x is not None
        ]
        if bool(torch.isfinite(torch.cat([e.to(self.logits.device) for e in ends])).all()):
            return
        for name in ("logits", "features", "pixels"):
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
        """Batches of one shape and one context, one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        joined: dict[str, Any] = {
            name: None if getattr(first, name) is None
            else torch.cat([getattr(p, name) for p in parts])
            for name in ("logits", "features", "pixels")
        }  # fmt: skip
        return replace(first, keys=tuple(k for p in parts for k in p.keys), **joined)

    @staticmethod
    def runs(parts: Iterable[Batch], most: int) -> Iterator[Batch]:
        """Neighbours of like shape, dtype, device and context, joined up to `most` images."""
        group: list[Batch] = []
        for p in parts:
            if group and (sum(map(len, group)) + len(p) > most or not _alike(group[0], p)):
                yield Batch.join(group)
                group = []
            group.append(p)
        if group:
            yield Batch.join(group)


def _alike(a: Batch, b: Batch) -> bool:
    for name in ("logits", "features", "pixels"):
        x, y = getattr(a, name), getattr(b, name)
        if (x is None) != (y is None):
            return False
        if x is not None and (x.shape[1:], x.dtype, x.device) != (y.shape[1:], y.dtype, y.device):
            return False
    return a.context.same(b.context)


def _tensor(x: Any, name: str) -> Tensor:
    """A tensor of what a person brings: a tensor, an array, or nested lists of numbers."""
    try:
        out: Tensor = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} cannot be read as numbers ({error}); pass a tensor, an array or nested lists "
            "of equal length"
        ) from error
    # Whole numbers and float8 have no arithmetic that would do.
    return out if out.is_floating_point() and out.dtype.itemsize > 1 else out.float()


@dataclass(frozen=True, eq=False)
class Sample:
    """One image of a person who brings logits of their own: tensors, arrays or nested lists.

    Attributes:
        logits: (V, L); view 0 is the base view.
        features: (V, D) unit vectors, and class_weights: (L, D) unit vectors, where a method needs
            them; then logits = scale · features · class_weightsᵀ + bias.
        unit: whether features are unit vectors, as in `Context`.
        pixels: (V, 3, H, W) normalised, and model and classes (names): only for methods that
            declare the need of a tower.
    """

    logits: Tensor
    features: Tensor | None = None
    class_weights: Tensor | None = None
    scale: float = 1.0
    pixels: Tensor | None = None
    model: Model | None = None
    classes: Sequence[str] | None = None
    bias: float = 0.0
    unit: bool = True

    def __post_init__(self) -> None:
        for name in ("logits", "features", "class_weights", "pixels"):
            if (x := getattr(self, name)) is not None:
                object.__setattr__(self, name, _tensor(x, name))
        if self.logits.ndim != 2 or 0 in self.logits.shape:
            raise InputError(
                f"logits of shape {tuple(self.logits.shape)} are not (views, classes); "
                "pass one row a view and at least one of each"
            )

    @property
    def batch(self) -> Batch:
        """A batch of one."""
        lone = (None if x is None else x[None] for x in (self.logits, self.features, self.pixels))
        logits, features, pixels = lone
        assert logits is not None
        shared = (self.class_weights, self.scale, self.model, self.classes, self.bias, self.unit)
        return Batch(logits, features, pixels, Context(*shared))

    @staticmethod
    def of(batch: Batch, i: int = 0) -> Sample:
        """One image of a batch."""
        c = batch.context
        features = None if batch.features is None else batch.features[i]
        pixels = None if batch.pixels is None else batch.pixels[i]
        shared = (c.class_weights, c.scale, pixels, c.model, c.classes, c.bias, c.unit)
        return Sample(batch.logits[i], features, *shared)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A decision and what explains it.

    Attributes:
        probs: (L,) float32 or wider.
        index: the most probable class; label: its name, where names are known.
        entropy: (V,) of every view, by the method's own measure.
        kept: indices of the views that were used, most confident first.
        q: (L,) the class-specific q, for adaptive methods.
        prior: (L,) the class prior that was in force, if one was.
        scores: (L,) one score a class, for methods that allow several labels at once.
        source: the image's name: its path or key, where it has one.
        classes: the names of all classes, where they are known.
    """

    probs: Tensor
    entropy: Tensor | None = None
    kept: Tensor | None = None
    q: Tensor | None = None
    prior: Tensor | None = None
    scores: Tensor | None = None
    label: str | None = None
    source: str | None = None
    classes: Sequence[str] | None = field(default=None, repr=False)

    @property
    def index(self) -> int:
        return int(self.probs.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probs.max())

    def top(self, k: int = 5) -> list[tuple[int, float]]:
        """The k most probable classes with their probabilities."""
        if not hasattr(k, "__index__") or k < 0:
            raise InputError(f"the {k!r} most probable classes cannot be given; ask for 0 or more")
        values, indices = self.probs.topk(min(int(k), self.probs.numel()))
        return list(zip(indices.tolist(), values.tolist(), strict=True))

    def best(self, k: int = 5) -> list[tuple[str, float]]:
        """The names of the k most probable classes with their probabilities."""
        return [(self._name(i), x) for i, x in self.top(k)]

    def _name(self, index: int) -> str:
        if self.classes is not None:
            return self.classes[index]
        lone = self.label if index == self.index else None
        return f"class {index}" if lone is None else lone

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can say it: numbers, texts and lists; None where there is nothing."""
        tensors = ("probs", "entropy", "kept", "q", "prior", "scores")
        lists = {n: None if (x := getattr(self, n)) is None else x.tolist() for n in tensors}
        return {
            "source": self.source,
            "label": self.label,
            "index": self.index,
            "confidence": self.confidence,
            **lists,
        }

    def _repr_html_(self) -> str:
        """A small table with a bar per class, for notebooks."""
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td>'
            f'<td style="text-align:left;width:12em"><div style="width:{100 * x:.1f}%;height:0.8em;'
            f'background:#2a6fbb"></div></td><td>{100 * x:.1f} %</td></tr>'
            for name, x in self.best()
        )
        said = (self.source or "").encode("utf-8", "backslashreplace").decode()
        head = f"<caption>{escape(said)}</caption>" if said else ""
        return f"<table>{head}{rows}</table>"


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a batch, one row an image; a sequence of `Prediction`.

    `known` says of which images q and prior were in force; True stands for all.
    """

    probs: Tensor  # (B, L)
    entropy: Tensor | None = None  # (B, V)
    kept: Tensor | None = None  # (B, K)
    q: Tensor | None = None  # (B, L)
    prior: Tensor | None = None  # (B, L)
    scores: Tensor | None = None  # (B, L)
    known: tuple[bool, ...] | bool = True

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, i: int) -> Prediction:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        known = self.known if isinstance(self.known, bool) else self.known[i]
        shown = _ROWS if known else [n for n in _ROWS if n not in ("q", "prior")]
        return Prediction(**{n: x[i] for n in shown if (x := getattr(self, n)) is not None})

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def sent(self) -> Callable[[], Predictions]:
        """The same on its way to the host, all at once; the call waits until it is there."""
        if self.probs.device.type != "cuda":
            return lambda: self
        there = {n: x for n in _ROWS if (x := getattr(self, n)) is not None}
        here: dict[str, Any] = {n: x.to("cpu", non_blocking=True) for n, x in there.items()}
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self.probs.device))

        def wait() -> Predictions:
            arrived.synchronize()
            return Predictions(**here, known=self.known)

        return wait

    @staticmethod
    def stack(rows: Sequence[Prediction]) -> Predictions:
        """The predictions of single images, of one shape, as those of a batch."""
        parts = []
        for r in rows:
            row: dict[str, Any] = {n: x[None] for n in _ROWS if (x := getattr(r, n)) is not None}
            parts.append(Predictions(**row, known=r.q is not None or r.prior is not None))
        return Predictions.join(parts)

    @staticmethod
    def join(parts: Sequence[Predictions]) -> Predictions:
        """The predictions of neighbouring batches as one."""
        if len(parts) == 1:
            return parts[0]
        out: dict[str, Any] = {}
        for name in _ROWS:
            every = [getattr(p, name) for p in parts]
            there = next((x for x in every if x is not None), None)
            if there is None:
                continue
            filled = [
                there.new_full((len(p), *there.shape[1:]), torch.nan) if x is None else x
                for p, x in zip(parts, every, strict=True)
            ]
            out[name] = torch.cat(filled)
        known = tuple(
            p.known if isinstance(p.known, bool) else p.known[i]
            for p in parts
            for i in range(len(p))
        )
        return Predictions(**out, known=True if all(known) else known)


_ROWS = tuple(f.name for f in fields(Predictions) if f.name != "known")
