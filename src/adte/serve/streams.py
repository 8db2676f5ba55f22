"""One stream: a classifier, what happened to it, and how that is done again.

Everything that changes a stream is an *event* with a number, `seq`. An event holds what is needed
to do it again: the features of the images that were learned from, or the images themselves for
methods that look at pixels. Doing the events again in order gives the same state, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from adte.classifier import Classifier
from adte.classifier.learned import Lineage
from adte.core import state as declared
from adte.core.batch import Batch
from adte.core.errors import InputError, StateError
from adte.core.prediction import Prediction, check_probs
from adte.images import Views
from adte.methods import create_method
from adte.methods.selector import Selector
from adte.models.base import Model
from adte.models.prompts import Prompts
from adte.serve.limits import FORMATS, Limits
from adte.serve.packing import dump, learned_in, load_into, pack, unpack
from adte.serve.pictures import opened
from adte.serve.settings import Event, Kind, Settings

__all__ = ["Mark", "Stream"]

# A method that needs no tower works on the host for so many classes: an image at a time is some
# hundred small steps, each of which a GPU takes longer for, and more so beside a busy tower.
HOST = frozenset({"logits", "features", "class weights"})
SMALL = 4096
ANY = [f.upper() for f in FORMATS]  # what was accepted once is read again, whatever is allowed now


@dataclass(frozen=True)
class Mark:
    """Where a stream stood, to go back to if a change cannot be written."""

    tensors: dict[str, Tensor]
    seen: int
    frozen: bool
    temperature: float
    lineage: Lineage
    seq: int
    origin: Tensor | None
    drift: float | None


@dataclass(eq=False)
class Stream:
    """A classifier behind an address. One thread changes it.

    Attributes:
        seq: number of the last event; kept: of the last snapshot.
        origin: p̃₀ (L,), the first prior in force, which drift is measured from.
        made: digest of the request that made it, if that had a key.
        damaged: why it cannot be used, if so.
    """

    id: str
    settings: Settings
    clf: Classifier
    created: str
    token: bytes | None = None
    made: bytes | None = None
    seq: int = 0
    kept: int = 0
    origin: Tensor | None = None
    drift: float | None = None
    damaged: str = ""

    @property
    def episodic(self) -> bool:
        """Whether each image is the first one."""
        return self.settings.protocol == "episodic"

    @property
    def _device(self) -> torch.device:
        """Where the method works."""
        vectors = self.clf.context.class_weights
        assert vectors is not None
        return vectors.device

    @property
    def on_host(self) -> bool:
        """Whether the method works on the CPU, wherever the tower is."""
        return self._device.type == "cpu"

    # ------------------------------------------------------------------ making

    @staticmethod
    def make(
        id: str,
        settings: Settings,
        model: Model,
        created: str,
        token: bytes | None,
        limits: Limits | None = None,
        like: Stream | None = None,
    ) -> Stream:
        """A stream at its beginning. One that could not predict is refused.

        `like` is another one of the same model. If it has the same settings, both share the vectors
        of the classes, and no text is encoded again.
        """
        if like is not None and like.settings == settings:
            clf = like.clf.anew()
        else:
            clf = _classifier(settings, model)
            clf.fingerprint = model.fingerprint if like is None else like.clf.fingerprint
        method = clf.method
        if settings.protocol == "frozen":
            clf.freeze()
        stream = Stream(id, settings, clf, created, token)
        if limits is not None:
            sizes = _Sizes(L=len(clf.classes), D=int(model.dim))
            size = declared.nbytes(method.entries(), sizes)
            if size > limits.max_state:
                raise InputError(f"the state would take {size} bytes, more than the "
                                 f"{limits.max_state} that are allowed; use fewer classes or "
                                 "another method")  # fmt: skip
            stream.try_out()
        return stream

    def try_out(self) -> None:
        """Refuse a stream that cannot predict: options or a state that do not work."""
        g = torch.Generator().manual_seed(0)
        features = torch.randn(1, self.settings.views, self.clf.model.dim, generator=g)
        pixels = None
        if "pixels" in self.clf.method.needs:
            side = self.clf.model.preprocess.size
            pixels = torch.randn(1, self.settings.views, 3, side, side, generator=g)
            pixels = pixels.to(self.clf.model.device, self.clf.model.dtype)
        features = torch.nn.functional.normalize(features, dim=-1).to(self._device)
        batch = self.clf.context.batch(features, pixels, ("trial",))
        twin = self.clf.method.clone()
        twin.load_state_dict(self.clf.method.state_dict())
        for _ in range(2):  # before and after it has learned
            check_probs(twin.name, twin.step(batch).probs, (1, batch.classes))

    # ------------------------------------------------------------------ predicting

    def look(self, batch: Batch) -> list[Prediction]:
        """Predictions that leave everything as it is."""
        if not self.episodic:
            return self.clf.step(batch, learn=False)
        mark = self.mark()
        try:
            return self.learn(batch)
        finally:
            self.back_to(mark)

    @property
    def joins(self) -> bool:
        """Whether images of several requests may be learned from at once, with the same numbers."""
        return self.on_host and not self.episodic and self.clf.method.needs <= HOST

    def learn(self, batch: Batch) -> list[Prediction]:
        """Predict and learn, unless frozen. Where there is no prediction, nothing has changed."""
        mark, method = self.mark(), self.clf.method
        try:
            if not self.episodic:
                return self.clf.step(batch)
            predictions = []
            for image in batch:  # each as the first one after the initial state
                predictions += self.clf.step(image)
                method.load_state_dict(mark.tensors)
            return predictions
        except InputError:
            self.back_to(mark)
            raise

    def note(
        self, found: list[Prediction], features: Sequence[Tensor], images: Sequence[bytes]
    ) -> Event:
        """The event that does again what `learn` did with some images, or with some of them.

        `features` (V, D) of each are those of the tower, float16.
        """
        kind: Kind = "learn"
        if self.clf.frozen:
            kind = "look"
        elif self.episodic or not self.clf.method.stateful:
            kind = "count"
        elif "pixels" in self.clf.method.needs:
            kind = "image"
        data = b""
        if kind == "image":
            data = pack({str(i): _bytes(image) for i, image in enumerate(images)})
        elif kind == "learn":
            data = pack({"features": torch.stack(list(features))})
        self.seq += 1
        return Event(kind, len(found), data)

    def measure_drift(self, found: list[Prediction]) -> list[float | None]:
        """How far the prior had gone at each image."""
        out = []
        for p in found:
            if p.prior is not None:
                prior = p.prior.detach().double().cpu()
                if self.origin is None:
                    self.origin = prior.clone()
                self.drift = float((prior - self.origin).abs().sum() / 2)
            out.append(self.drift)
        return out

    # ------------------------------------------------------------------ other events

    def change(self, kind: Kind, data: bytes = b"") -> list[Event]:
        """Freeze, unfreeze, reset, set the temperature, or take over a state.

        A state that was frozen freezes the stream, which is an event of its own.
        """
        frozen = self.clf.frozen
        self._change(kind, data, trusted=False)
        events = [Event(kind, 0, dump(self.clf) if kind == "state" else data)]
        if kind == "state" and self.clf.frozen and not frozen:
            events.append(Event("freeze"))
        self.seq += len(events)
        return events

    def begin(self, data: bytes) -> list[Event]:
        """Begin with what another stream learned."""
        _, *more = self.change("state", data)
        with self._trial():
            self.clf.begin()
            self.try_out()
        return [Event("state", 0, dump(self.clf)), *more]

    def _change(self, kind: Kind, data: bytes, trusted: bool) -> None:
        if kind == "freeze":
            self.clf.freeze()
        elif kind == "unfreeze":
            self.clf.unfreeze()
        elif kind == "temperature":
            self.clf.temperature = float(data)
        else:
            if kind == "state":
                self._take_over(data, trusted)
            else:
                self.clf.reset()
            self.origin = self.drift = None

    def _take_over(self, data: bytes, trusted: bool) -> None:
        with self._trial():
            load_into(self.clf, data)
            facts = learned_in(data)[1]
            if trusted:  # it went on from nothing new
                self.clf.lineage = facts["lineage"]
                return
            self._check_room()
            self.try_out()
            if facts["frozen"]:
                self.clf.freeze()

    def _check_room(self) -> None:
        """Refuse counts that could not grow: what is learned then could not be loaded again."""
        entries, state = self.clf.method.entries(), self.clf.method.state_dict()
        summed = [v for k, v in state.items() if v.numel() and not v.is_floating_point()
                  and (e := declared.entry_of(entries, k)) and e.reduce == "sum"]  # fmt: skip
        if max(self.clf.seen, *(int(v.max()) for v in summed), 0) > declared.MANY // 2:
            raise StateError("the state says that it has seen more images than any stream could; "
                             "save it again where it was learned")  # fmt: skip

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """Within the block a state is tried; if it fails in whatever way, nothing has changed."""
        old = self.mark()
        try:
            yield
        except (StateError, OSError):  # a disk that fails is no fault of the state
            self.back_to(old)
            raise
        except Exception as error:
            self.back_to(old)
            why = error.problem if isinstance(error, InputError) else type(error).__name__
            raise StateError(
                f"the state cannot be used: a prediction with it fails ({why}); save it again "
                "where it was learned, or go on without it"
            ) from error

    def redo(self, event: Event) -> None:
        """Do again what happened, after a restart; the caller numbers it."""
        if event.kind == "learn":
            features = unpack(event.data)["features"].to(self._device)
            self.clf.method.learn(self.clf.context.batch(features))
            self.clf.seen += event.images
        elif event.kind == "image":
            found = unpack(event.data)
            images = [found[str(i)].numpy().tobytes() for i in range(event.images)]
            frozen, self.clf.frozen = self.clf.frozen, False
            self.clf.learn([opened(data, ANY) for data in images])
            self.clf.frozen = frozen
        elif event.kind == "count":
            self.clf.seen += event.images
        elif event.kind != "look":
            self._change(event.kind, event.data, trusted=True)

    # ------------------------------------------------------------------ state

    def mark(self) -> Mark:
        """Where the stream stands."""
        clf = self.clf
        return Mark(clf.method.state_dict(), clf.seen, clf.frozen, clf.temperature, clf.lineage,
                    self.seq, self.origin, self.drift)  # fmt: skip

    def back_to(self, mark: Mark) -> None:
        """Stand there again."""
        self.clf.method.load_state_dict(mark.tensors)
        self.clf.seen, self.clf.frozen = mark.seen, mark.frozen
        self.clf.temperature, self.clf.lineage = mark.temperature, mark.lineage
        self.seq, self.origin, self.drift = mark.seq, mark.origin, mark.drift

    def dump(self) -> bytes:
        """The state as a file."""
        return dump(self.clf)

    def facts(self) -> dict[str, Any]:
        """The facts of a stream, as the API has them."""
        s = self.settings
        return {
            "id": self.id,
            "model": self.clf.model.name,
            "classes": s.classes,
            "templates": list(s.prompts["templates"]),
            "described": bool(s.prompts["descriptions"]),
            "method": s.method,
            "options": self.clf.method.params,
            "views": s.views,
            "seed": s.seed,
            "protocol": s.protocol,
            "frozen": self.clf.frozen,
            "seen": self.clf.seen,
            "temperature": self.clf.temperature,
            "seq": self.seq,
            "created": self.created,
            "damaged": self.damaged or None,
        }

    def beliefs(self) -> tuple[list[float] | None, list[float] | None]:
        """The prior and q by class, of the stream as a whole."""
        method = self.clf.method
        found = method.class_prior
        if found is None or not found.seen:
            return None, None
        log_prior = found.log_prior
        q = method.entropy.class_q(log_prior) if isinstance(method, Selector) else None
        return log_prior.exp().tolist(), None if q is None else q.tolist()

    @property
    def bytes(self) -> int:
        return sum(v.nbytes for v in self.clf.method.state_dict().values())


class _Sizes(dict[str, int]):
    """Sizes for the letters of a declared state; a guess where only the model knows."""

    def __missing__(self, letter: str) -> int:
        return 64


def _classifier(settings: Settings, model: Model) -> Classifier:
    with warnings.catch_warnings():  # of names that repeat; this is the maker's own right
        warnings.simplefilter("ignore")
        method = create_method(settings.method, **settings.options)
        clf = Classifier(
            model,
            settings.classes,
            method,
            templates=Prompts(**settings.prompts),
            views=Views(settings.views, seed=settings.seed, enlarge=settings.enlarge),
        )
    if len(settings.classes) <= SMALL and method.needs <= HOST:
        vectors = clf.context.class_weights
        assert vectors is not None
        clf.context = replace(clf.context, class_weights=vectors.cpu())
    return clf


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
