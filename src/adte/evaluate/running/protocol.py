"""Run a method over a labelled stream under a protocol."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch, Sample
from adte.core.errors import InputError, brief, unknown
from adte.core.machine import as_it_is, threads
from adte.core.prediction import Prediction, Predictions, check_probs
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Image, Samples, Tick, silent
from adte.methods import Method, PriorMethod, create_method
from adte.methods.prior import Belief

__all__ = ["BATCH", "PROTOCOLS", "Protocol", "Run", "learned", "predictions", "run"]

Protocol = Literal["online", "two-pass", "episodic", "frozen"]

BATCH = 16  # images that a method gets together

PROTOCOLS: dict[str, str] = {
    "online": "one pass; every image is predicted and learned from",
    "two-pass": "a first pass learns, a second predicts; needs the whole set in advance",
    "episodic": "what was learned is forgotten after every image",
    "frozen": "nothing is learned; the state stays as it is",
}


def act(method: Method, protocol: Protocol, batch: Batch) -> Predictions:
    """Predictions of a batch, in the last pass of the protocol."""
    if protocol == "online":
        return method.step(batch)
    if protocol != "episodic":
        return method.predict(batch)
    out = []
    for image in batch:
        method.reset()
        out.append(method.step(image))
    method.reset()
    return Predictions.join(out)


def predictions(
    method: Method, samples: Iterable[Sample], protocol: Protocol = "online", batch: int = BATCH
) -> Iterator[Prediction]:
    """Predict samples in order under a protocol.

    Args:
        method: the method; it is changed by what it learns.
        samples: the images. The protocol "two-pass" goes over them twice, so it takes no iterator.
        protocol: one of `PROTOCOLS`.
        batch: images that the method gets at a time; it does not change the predictions.

    Yields:
        A `Prediction` for each sample.
    """
    _check(method, protocol, samples)
    if protocol == "two-pass":
        for some in Batch.runs((s.batch for s in samples), batch):
            method.learn(some)
    for some in Batch.runs((s.batch for s in samples), batch):
        yield from act(method, protocol, some)


def _check(method: object, protocol: str, stream: Iterable[Any]) -> None:
    if not isinstance(method, Method):
        raise InputError(f"{brief(method)} is no method; make one with create_method(NAME)")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if protocol == "two-pass" and iter(stream) is stream:
        raise InputError(
            "the two-pass protocol reads the stream twice, but an iterator can be read once; pass "
            "a list or another re-iterable"
        )


@dataclass
class Run:
    """The result of one method on one stream, from which metrics are computed.

    Arrays have one entry per image, in stream order.

    Attributes:
        method, protocol, options: name of the method, the protocol, and all options of the method.
        labels: true classes.
        predicted: predicted classes.
        confidence: probability of the predicted class.
        truth: probability of the true class.
        rank: rank of the true class; 0 means that it was predicted.
        entropy: Shannon entropy of the predicted distribution, in nats.
        seconds: time of the method alone. Reading and encoding images is not counted, so that runs
            on images and on cached features can be compared.
        tcr: top-k cumulative reliability Tcr_1 … Tcr_K of the kept views, averaged over images.
        classes: number of classes.
        ids, domains, groups: id, domain and group of each image.
        places: where ids and domains do not tell images apart, the place of each in the stream's
            source, whatever the order of the stream.
        frequency: how often the model saw each class in training, if known.
        log_prior: the method's log class prior at the end, if it has one.
        peak_memory: peak memory in bytes, if it was measured.
    """

    method: str
    protocol: str
    options: dict[str, Any]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    truth: NDArray[np.float64]
    rank: NDArray[np.int64]
    entropy: NDArray[np.float64]
    seconds: float
    tcr: NDArray[np.float64] | None = None
    classes: int = 0
    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    frequency: NDArray[np.float64] | None = None
    log_prior: NDArray[np.float64] | None = None
    peak_memory: int | None = None

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each prediction is right."""
        return np.equal(self.labels, self.predicted)

    @property
    def images_per_s(self) -> float:
        """Images per second of the method alone."""
        return len(self.labels) / max(self.seconds, 1e-9)


def _reliability(logits: Tensor, kept: Tensor | None) -> Tensor:
    """Tcr_1 … Tcr_20 of the kept views, or of the base view; sum of images.  (B, V, L) → (K,)"""
    views = logits[:, :1] if kept is None else F.take_views(logits, kept)
    top = views.topk(min(20, views.shape[-1])).values
    return top.cumsum(-1).mean(1).sum(0)


def _compared(probs: Tensor, labels: Tensor) -> Tensor:
    """Label, predicted class, confidence, the truth's probability and rank, entropy.  (6, B)"""
    truth = probs.gather(1, labels[:, None])
    confidence, predicted = probs.amax(-1), probs.argmax(-1)  # of equals, the first
    earlier = torch.arange(probs.shape[1]) < labels[:, None]  # which of equals come first
    rank = ((probs > truth) | ((probs == truth) & earlier)).sum(-1)
    entropy = torch.special.entr(probs).sum(-1)
    columns = labels, predicted, confidence, truth[:, 0], rank, entropy
    return torch.stack([c.double() for c in columns])


@as_it_is()
def run(
    method: Method,
    stream: FeatureStream | Iterable[tuple[Sample, int]],
    protocol: Protocol = "online",
    tick: Tick = silent,
    batch: int = BATCH,
) -> Run:
    """Run a method over a labelled stream; the method never sees the labels.

    Args:
        method: the method; it is changed by what it learns.
        stream: a stream of features, such as `from_arrays` makes, or (sample, label) pairs.
        protocol: one of `PROTOCOLS`.
        tick: called with the number of images that were just done.
        batch: images that the method gets at a time; it does not change the predictions.

    Raises:
        InputError: if the protocol is unknown, "two-pass" was asked of an iterator, or a label is
            that of no class.
    """
    _check(method, protocol, stream)
    if not isinstance(stream, FeatureStream):
        stream = Samples(stream, Recipe(model="", classes=()))
    clock = _Clock()
    if protocol == "two-pass":
        for some, images in stream.batches(batch, clock):
            with clock:
                method.learn(some)
            tick(len(images))
    rows: list[Tensor] = []
    known: list[Image] = []
    tcr: Tensor | None = None
    for some, images in stream.batches(batch, clock):
        labels = torch.tensor([i.label for i in images])
        with clock:
            out = act(method, protocol, some)
            probs = out.probs.float().cpu()  # the device has finished when they are here
        check_probs(method.name, probs, (len(images), some.classes))
        rows.append(_compared(probs, labels))
        reliability = _reliability(some.logits.float(), out.kept).cpu()
        tcr = reliability if tcr is None else tcr + reliability
        known += [i._replace(features=_NOTHING) for i in images]  # nobody looks at them any more
        tick(len(images))
    table = (torch.cat(rows, 1) if rows else torch.zeros(6, 0)).double().numpy()
    unique = len({(i.id, i.domain) for i in known}) == len(known)
    return Run(
        method=method.name,
        protocol=protocol,
        options=method.params,
        labels=table[0].astype(np.int64),
        predicted=table[1].astype(np.int64),
        confidence=table[2],
        truth=table[3],
        rank=table[4].astype(np.int64),
        entropy=table[5],
        tcr=None if tcr is None else (tcr / len(known)).double().numpy(),
        seconds=clock.seconds,
        classes=len(stream.classes),
        ids=[i.id for i in known],
        domains=[i.domain for i in known],
        groups=[i.group for i in known],
        places=[] if unique else [i.place for i in known],
        frequency=stream.frequency,
    )


def learned(
    stream: FeatureStream, method: str, tick: Tick = silent, **options: Any
) -> tuple[PriorMethod, Belief]:
    """A method that has learned from the whole stream, and its class prior."""
    made = create_method(method, **options)
    assert isinstance(made, PriorMethod)
    with threads(1):  # without a tower to run, more only get in the way
        for batch, images in stream.batches(4 * BATCH):
            made.learn(batch)
            tick(len(images))
    prior = made.class_prior
    assert prior is not None
    return made, prior


_NOTHING = torch.empty(0)


class _Clock:
    """Seconds spent within it, but not those of the tower: its features are waited for first.

    Only the stream that they come on is: the tower may be busy with the next images meanwhile.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        _wait()
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        _wait()
        self.seconds += time.perf_counter() - self._start


def _wait() -> None:
    """Wait until a GPU has done the work of this stream."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().synchronize()
