"""Run a method over a labelled stream under a protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from adte.errors import InputError, unknown
from adte.methods import Method, Prediction, Sample

__all__ = ["PROTOCOLS", "Protocol", "Run", "predictions", "run"]

Protocol = Literal["online", "two-pass", "episodic", "frozen"]
Stream = Iterable[tuple[Sample, int]]
T = TypeVar("T")

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
    method: Method, stream: Iterable[Sample], protocol: Protocol = "online", batch: int = 16
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
    seconds: float
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

    def __iter__(self) -> Iterator[Sample]:
        self.labels = []
        for sample, label in self.stream:
            self.labels.append(int(label))
            yield sample
            self.tick()


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
    last: Prediction | None = None
    start = time.perf_counter()
    for last in predictions(method, samples, protocol):
        label = samples.labels[len(predicted)]
        predicted.append(last.index)
        confidence.append(last.confidence)
        truth.append(float(last.probs[label]))
        rank.append(int((last.probs > last.probs[label]).sum()))
    return Run(
        method=method.name,
        protocol=protocol,
        options=method.params,
        labels=np.array(samples.labels, dtype=np.int64),
        predicted=np.array(predicted, dtype=np.int64),
        confidence=np.array(confidence),
        truth=np.array(truth),
        rank=np.array(rank, dtype=np.int64),
        seconds=time.perf_counter() - start,
        last=last,
    )
