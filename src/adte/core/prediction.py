"""The output of a method: a `Prediction` of one image, `Predictions` of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from adte.core.errors import InputError, brief

__all__ = ["Prediction", "Predictions", "check_probs"]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The answer for one image, and what explains it.

    L is the number of classes, V that of views. What a method does not provide is None.

    Attributes:
        probs: probabilities of the classes (L,), float32 or wider.
        entropy: uncertainty of every view (V,), by the method's own measure.
        kept: indices of the views that were used, most confident first.
        q: the q of each class (L,), for methods with an adaptive Tsallis entropy.
        prior: the class prior that was used (L,).
        scores: a score for each class (L,), for methods that allow several labels at once.
        label: name of the most probable class, if names are known.
        source: name of the image: its path or key, if it has one.
        classes: names of all classes, if they are known.
    """

    probs: Tensor
    entropy: Tensor | None = None
    kept: Tensor | None = None
    q: Tensor | None = None
    prior: Tensor | None = None
    scores: Tensor | None = None
    label: str | None = None
    source: str | None = None
    classes: Sequence[str] | None = None

    @property
    def index(self) -> int:
        """Index of the most probable class."""
        return int(self.probs.argmax())

    @property
    def confidence(self) -> float:
        """Probability of the most probable class."""
        return float(self.probs.detach().max())

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable classes as (name, probability), best first."""
        if not hasattr(k, "__index__") or k < 0:
            raise InputError(f"the {k!r} most probable classes cannot be given; ask for 0 or more")
        values, indices = self.probs.sort(descending=True, stable=True)  # a tie goes to the first
        pairs = zip(indices[:k].tolist(), values[:k].tolist(), strict=True)
        return [(self._name(i), x) for i, x in pairs]

    def __repr__(self) -> str:
        """One line: the label, its confidence, and the image where it has a name."""
        ((name, confidence),) = self.top(1)
        source = "" if self.source is None else f", source={brief(self.source)}"
        return f"Prediction({brief(name)}, confidence={confidence:.3f}{source})"

    def _name(self, index: int) -> str:
        if self.classes is not None:
            return self.classes[index]
        lone = self.label if index == self.index else None
        return f"class {index}" if lone is None else lone

    def to_dict(self) -> dict[str, Any]:
        """Everything as values for JSON: numbers, texts, lists, and None for what is missing."""
        tensors = ("probs", "entropy", "kept", "q", "prior", "scores")
        lists = {n: None if (x := getattr(self, n)) is None else x.tolist() for n in tensors}
        return {
            "source": self.source,
            "label": self.label,
            "index": self.index,
            "confidence": self.confidence,
            **lists,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Numbers by value: a tensor takes its whole batch along, and between processes it is an
        open file for as long as it lives.
        """
        return {k: _by_value(v) if isinstance(v, Tensor) else v for k, v in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(
            (k, torch.tensor(v, device="cpu") if isinstance(v, np.ndarray) else v)
            for k, v in state.items()
        )

    def _repr_html_(self) -> str:
        """A small table with a bar per class, for notebooks."""
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td>'
            f'<td style="text-align:left;width:12em"><div style="width:{100 * x:.1f}%;height:0.8em;'
            f'background:#2a6fbb"></div></td><td>{100 * x:.1f} %</td></tr>'
            for name, x in self.top()
        )
        title = (self.source or "").encode("utf-8", "backslashreplace").decode()
        head = f"<caption>{escape(title)}</caption>" if title else ""
        return f"<table>{head}{rows}</table>"


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """The answers for a batch of images, one row per image.

    It is a sequence of `Prediction`: it has a length, and can be indexed, sliced and iterated over.
    A method's `decide` returns it. Attributes are as those of `Prediction`, with B images in front.

    Attributes:
        probs: probabilities (B, L).
        entropy: uncertainty of every view (B, V).
        kept: indices of the views that were used (B, K).
        q: the q of each class (B, L).
        prior: the class prior that was used (B, L).
        scores: a score for each class (B, L).
        known: for each image, whether `q` and `prior` were used; True stands for all.
    """

    probs: Tensor  # (B, L)
    entropy: Tensor | None = None  # (B, V)
    kept: Tensor | None = None  # (B, K)
    q: Tensor | None = None  # (B, L)
    prior: Tensor | None = None  # (B, L)
    scores: Tensor | None = None  # (B, L)
    known: tuple[bool, ...] | bool = True

    def __repr__(self) -> str:
        images, classes = self.probs.shape
        confidence = float(self.probs.detach().max(-1).values.mean()) if images else math.nan
        return f"Predictions({images} images, {classes} classes, mean confidence={confidence:.3f})"

    def __len__(self) -> int:
        return len(self.probs)

    @overload
    def __getitem__(self, i: int) -> Prediction: ...
    @overload
    def __getitem__(self, i: slice) -> Predictions: ...
    def __getitem__(self, i: int | slice) -> Prediction | Predictions:
        if isinstance(i, slice):
            at: Any = i if (i.step or 1) > 0 else [*range(len(self))][i]  # tensors go forward
            rows: dict[str, Any] = {n: x[at] for n in _ROWS if (x := getattr(self, n)) is not None}
            return Predictions(
                **rows, known=self.known if isinstance(self.known, bool) else self.known[i]
            )
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        known = self.known if isinstance(self.known, bool) else self.known[i]
        shown = _ROWS if known else [n for n in _ROWS if n not in ("q", "prior")]
        return Prediction(**{n: x[i] for n in shown if (x := getattr(self, n)) is not None})

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def sent(self) -> Callable[[], Predictions]:
        """Start copying all tensors to the CPU; the returned function waits for them."""
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
        """Put the predictions of single images, all of the same shape, together as a batch."""
        parts = []
        for r in rows:
            row: dict[str, Any] = {n: x[None] for n in _ROWS if (x := getattr(r, n)) is not None}
            parts.append(Predictions(**row, known=r.q is not None or r.prior is not None))
        return Predictions.join(parts)

    @staticmethod
    def join(parts: Sequence[Predictions]) -> Predictions:
        """Put the predictions of several batches together, in order."""
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


def _by_value(x: Tensor) -> Any:
    """An array, where there is one of its kind."""
    here = x.device.type == "cpu" and x.dtype is not torch.bfloat16
    return x.detach().numpy() if here else x


def check_probs(owner: str, probs: Tensor, shape: tuple[int, int]) -> None:
    """Refuse what a method gave for the probabilities of images (B, L), if it cannot be that."""
    if wrong := _wrong(probs.detach(), shape):
        raise InputError(f"method {owner!r} gave no probabilities: {wrong}")


def _wrong(probs: Tensor, shape: tuple[int, int]) -> str:
    """The fault of a method's probabilities, and its mend; empty if they have none."""
    if tuple(probs.shape) != shape:
        return (
            f"an array {tuple(probs.shape)} for {shape[0]} images of {shape[1]} classes; "
            f"`decide` returns {shape}"
        )
    sums = probs.sum(-1)
    off = (sums - 1).abs()
    if float(off.max()) <= 1e-2 and float(probs.min()) >= 0:  # NaN is neither
        return ""
    if not bool(probs.isfinite().all()):
        return "some are no numbers; check its options"
    if bool((probs < 0).any()):
        return f"some are negative, such as {float(probs.min()):.3g}; apply a softmax"
    return f"those of an image sum to {float(sums[off.argmax()]):.3g}; make it 1"


_ROWS = tuple(f.name for f in fields(Predictions) if f.name != "known")
