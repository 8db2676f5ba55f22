"""Run a method over a labelled stream under a protocol."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, unknown
from adte.methods import Method, Prediction, Sample

__all__ = ["PROTOCOLS", "Protocol", "Run", "predictions", "run"]

Protocol = Literal["online", "two-pass", "episodic", "frozen"]
Stream = Iterable[tuple[Sample, int]]
T = TypeVar("T")

BATCH = 16  # images that are handed to a method together

PROTOCOLS: dict[str, str] = {
    "online": "one pass; every image is predicted and learned from",
    "two-pass": "a first pass learns, a second predicts; needs the whole set in advance",
    "episodic": "state is forgotten after every image",
    "frozen": "the state as it is; nothing is learned",
}


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def predictions(
    method: Method, stream: Iterable[Sample], protocol: Protocol = "online", batch: int = BATCH
) -> Iterator[Prediction]:
    """Predictions in order. `two-pass` goes over the stream twice, so it must allow that."""
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if protocol == "two-pass":
        if iter(stream) is stream:
            raise InputError(
                "the two-pass protocol reads the stream twice, but an iterator can be "
                "read once; pass a list or another re-iterable"
            )
        for sample in stream:
            method.learn(sample)
    if protocol == "episodic":
        for sample in stream:
            method.reset()
            yield method.step(sample)
        method.reset()
        return
    do = method.step_many if protocol == "online" else method.predict_many
    for samples in _batches(stream, batch):
        yield from do(samples)


@dataclass
class Run:
    """What came of one method on one stream."""

    method: str
    protocol: str
    options: dict[str, Any]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    truth: NDArray[np.float64]  # probability of the true class
    rank: NDArray[np.int64]  # of the true class, 0 = predicted
    entropy: NDArray[np.float64]  # Shannon's, of the predicted distribution, in nats
    seconds: float
    tcr: NDArray[np.float64] | None = None  # (K,) Tcr_1 … Tcr_K of the kept views, mean of images
    last: Prediction | None = field(default=None, repr=False)

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.equal(self.labels, self.predicted)

    @property
    def images_per_s(self) -> float:
        return len(self.labels) / max(self.seconds, 1e-9)


class _Samples:
    """The samples of a labelled stream, re-iterable; notes the labels and ticks the progress."""

    def __init__(self, stream: Stream, tick: Callable[[], None]) -> None:
        self.stream, self.tick = stream, tick
        self.labels: list[int] = []
        # Logits whose prediction is yet to come; a pass that only learns lets them go.
        self.waiting: deque[Tensor] = deque(maxlen=BATCH)

    def __iter__(self) -> Iterator[Sample]:
        self.labels.clear()
        self.waiting.clear()
        for sample, label in self.stream:
            self.labels.append(int(label))
            self.waiting.append(sample.logits)
            yield sample
            self.tick()


def _reliability(logits: Tensor, kept: Tensor | None) -> Tensor:
    """Tcr_1 … Tcr_20 of the kept views, or of the base view where none are named.  (V, L) → (K,)"""
    views = logits[:1] if kept is None else F.take_views(logits, kept.to(logits.device))
    top = views.topk(min(20, views.shape[-1])).values
    return top.cumsum(-1).mean(0)


def run(
    method: Method,
    stream: Stream,
    protocol: Protocol = "online",
    tick: Callable[[], None] = lambda: None,
) -> Run:
    """Predict a labelled stream. The labels are only compared with, never shown to the method."""
    samples = _Samples(stream, tick)
    predicted: list[int] = []
    confidence: list[float] = []
    truth: list[float] = []
    rank: list[int] = []
    entropy: list[float] = []
    tcr: Tensor | None = None
    last: Prediction | None = None
    start = time.perf_counter()
    for last in predictions(method, samples, protocol):
        label = samples.labels[len(predicted)]
        probs = last.probs
        predicted.append(last.index)
        confidence.append(last.confidence)
        truth.append(float(probs[label]))
        rank.append(int((probs > probs[label]).sum()))
        entropy.append(float(torch.special.entr(probs).sum()))
        reliability = _reliability(samples.waiting.popleft(), last.kept)
        tcr = reliability if tcr is None else tcr + reliability
    return Run(
        method=method.name,
        protocol=protocol,
        options=method.params,
        labels=np.array(samples.labels, dtype=np.int64),
        predicted=np.array(predicted, dtype=np.int64),
        confidence=np.array(confidence),
        truth=np.array(truth),
        rank=np.array(rank, dtype=np.int64),
        entropy=np.array(entropy),
        tcr=None if tcr is None else (tcr / len(predicted)).double().cpu().numpy(),
        seconds=time.perf_counter() - start,
        last=last,
    )
