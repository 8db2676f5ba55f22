"""Confidence that means what it says, from some labelled images.

One temperature T for all classes: probabilities become p^(1/T), made to sum to one. Above 1 answers
are less sure, below 1 surer; which of them is best stays as it is (Guo et al., "On Calibration of
Modern Neural Networks", ICML 2017). There T makes labels likely. Here it makes it likely that
answers were right and wrong as they were, which is what `confidence` speaks of; and before any
image log T is normally distributed with deviation SPREAD, so that few labels move it a little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor

from adte.classifier.facts import TEMPERATURES
from adte.core.batch import Batch
from adte.core.errors import InputError, brief
from adte.methods import Method

__all__ = [
    "Calibration",
    "Threshold",
    "calibrate",
    "check_temperature",
    "fitted",
    "indices_of",
    "tempered",
]

SPREAD = 1.0  # of log T, before any image
WIDEST, STEP = 3.0, 0.02  # of the log T that are tried
LEAST = (0.5, 0.6, 0.7, 0.8, 0.9)  # thresholds that are told of
SURE = 1e-6  # no answer is taken to be surer than 1 less this


class Threshold(NamedTuple):
    """The effect of a threshold on confidence on the labelled images.

    Attributes:
        min_confidence: the threshold.
        labelled: share of the images that would get a label.
        wrong: share of those labels that are wrong; None if there are none.
    """

    min_confidence: float
    labelled: float
    wrong: float | None


class Calibration(NamedTuple):
    """The result of `Classifier.calibrate`.

    Attributes:
        temperature: the temperature that probabilities have from now on.
        images: number of labelled images it is based on.
        accuracy: share of the answers to them that are right.
        before, after: mean confidence of these answers, without and with the temperature.
        thresholds: for several values of min_confidence, the share of images that would get a
            label, and the share of wrong ones among those, with the temperature.
        zero_shot: accuracy of the model by itself on the same images, if known. It shows whether
            the method helps on images of this kind.
    """

    temperature: float
    images: int
    accuracy: float
    before: float
    after: float
    thresholds: tuple[Threshold, ...]
    zero_shot: float | None = None

    def __str__(self) -> str:
        images = f"{self.images} image{'' if self.images == 1 else 's'}"
        plain = "" if self.zero_shot is None else f" (zero-shot {self.zero_shot:.0%})"
        return (
            f"{self.accuracy:.0%} of {images} right{plain}, {self.before:.0%} sure on average; "
            f"now {self.after:.0%} sure (temperature {self.temperature:.2f})"
        )


def check_temperature(value: float) -> float:
    """A temperature that a state may hold."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not TEMPERATURES.hold(found):
        raise InputError(
            f"temperature={brief(value)} cannot be used; give a number from {TEMPERATURES.low:g} "
            f"to {TEMPERATURES.high:g}, 1 to leave confidence as it is"
        )
    return found


def tempered(probs: Tensor, temperature: float) -> Tensor:
    """Probabilities (…, L) at a temperature. In float64, so that close ones stay in their order."""
    logits = probs.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    return (logits / temperature).softmax(-1)


def indices_of(labels: Iterable[str | int], classes: Sequence[str], images: int) -> list[int]:
    """The labels of so many images as indices; they are names of classes, or indices already."""
    places: dict[str, int] = {}
    twice = {name for i, name in enumerate(classes) if places.setdefault(name, i) != i}
    if not isinstance(labels, Iterable):
        raise InputError(f"labels={brief(labels)} are no list; give one label for each image")
    out = []
    for label in labels:
        if isinstance(label, str):
            if label in twice:
                raise InputError(f"{label!r} is the name of several classes; give their indices")
            if label not in places:
                raise InputError(f"label {brief(label)} is none of the classes; check its spelling")
            out.append(places[label])
            continue
        try:  # rows of one-hot labels, and fractions, are no index
            out.append(range(len(classes)).index(index(label)))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"label {brief(label)} is neither the name of a class nor an index from 0 to "
                f"{len(classes) - 1}"
            ) from error
    if len(out) != images:
        raise InputError(f"{images} images have {len(out)} labels; give one for each")
    return out


def calibrate(
    method: Method, batches: Sequence[Batch], labels: Sequence[int], learn: bool
) -> Calibration:
    """The calibration of a method by images with known labels, in their order.

    The method stays as it is. A copy answers as the images come and, once it has learned from all
    of them, answers again: a stream has early images and late ones. One that may not learn answers
    once.
    """
    twin = method.clone()
    twin.load_state_dict(method.state_dict())
    probs = [twin.step(batch).probs for batch in batches] if learn else []
    probs += [twin.predict(batch).probs for batch in batches]
    base = torch.cat([batch.logits[:, 0].argmax(-1).cpu() for batch in batches])
    plain = float((base == torch.tensor(labels)).double().mean())
    return fitted(torch.cat(probs), labels)._replace(zero_shot=plain)


def fitted(probs: Tensor, labels: Sequence[int]) -> Calibration:
    """The calibration by answers (N, L) to images with known labels, of several passes stacked."""
    probs, passes = probs.double().cpu(), len(probs) // len(labels)
    right = probs.argmax(-1) == torch.tensor(labels).repeat(passes)

    def cost(temperature: float) -> float:
        """How unlikely it is that the answers were right and wrong as they were."""
        sure = tempered(probs, temperature).amax(-1).clamp(SURE, 1 - SURE)
        likely = torch.where(right, sure, 1 - sure).log().sum() / passes
        return float((math.log(temperature) / SPREAD) ** 2 / 2 - likely)

    temperature = min(_temperatures(), key=cost)
    after = tempered(probs, temperature).amax(-1)
    return Calibration(
        temperature, len(labels), float(right.double().mean()), float(probs.amax(-1).mean()),
        float(after.mean()), tuple(_threshold(least, after, right) for least in LEAST),
    )  # fmt: skip


def _threshold(least: float, confidences: Tensor, right: Tensor) -> Threshold:
    labelled = confidences >= least
    wrong = float((~right[labelled]).double().mean()) if labelled.any() else None
    return Threshold(least, float(labelled.double().mean()), wrong)


def _temperatures() -> Iterator[float]:
    """All that are tried, 1 first."""
    for i in range(round(WIDEST / STEP) + 1):
        yield math.exp(i * STEP)
        yield math.exp(-i * STEP)
