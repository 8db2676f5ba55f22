"""The contract of a method, and what a method sees and says of one image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, StateError, unknown
from adte.options import option
from adte.prior import ClassPrior, PriorOptions

if TYPE_CHECKING:
    from adte.models.base import Model

__all__ = ["Method", "Prediction", "PriorMethod", "Sample", "ViewMethod"]


@dataclass(frozen=True, eq=False)
class Sample:
    """What a method sees of one image. Labels never reach a method.

    Attributes:
        logits: (V, L); view 0 is the base view.
        features: (V, D) unit vectors, and class_weights: (L, D) unit vectors, where a method needs
            them; then logits = scale · features · class_weightsᵀ.
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

    def require(self, name: str) -> Any:
        """A part that a method cannot do without."""
        value = getattr(self, name)
        if value is None:
            raise InputError(
                f"this method needs {name.replace('_', ' ')}, but the sample has none; "
                f"pass Sample(logits, {name}=…)"
            )
        return value

    def __post_init__(self) -> None:
        if self.logits.ndim != 2 or 0 in self.logits.shape:
            raise InputError(
                f"logits of shape {tuple(self.logits.shape)} are not (views, classes); "
                "pass one row a view and at least one of each"
            )
        if not bool(torch.isfinite(self.logits).all()):
            raise InputError(
                "logits hold NaN or infinite values; check the model's output "
                "(half-precision overflow is the usual cause)"
            )


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
    """

    probs: Tensor
    entropy: Tensor | None = None
    kept: Tensor | None = None
    q: Tensor | None = None
    prior: Tensor | None = None
    scores: Tensor | None = None
    label: str | None = None

    @property
    def index(self) -> int:
        return int(self.probs.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probs.max())

    def top(self, k: int = 5) -> list[tuple[int, float]]:
        """The k most probable classes with their probabilities."""
        values, indices = self.probs.topk(min(k, self.probs.numel()))
        return list(zip(indices.tolist(), values.tolist(), strict=True))


@dataclass(kw_only=True, eq=False)
class Method(ABC):
    """A rule that turns the views of an image into a prediction, and may learn from the stream.

    Hyper-parameters are the dataclass fields; `repr`, `clone` and the command line's help come
    from them. State is made at the first sample, when the number of classes is known.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"logits"})
    reference: ClassVar[str] = ""

    order: Literal["predict-first", "learn-first"] = option(
        "predict-first", "online, whether an image is predicted before or after it is learned from"
    )

    def __post_init__(self) -> None:
        if self.order not in ("predict-first", "learn-first"):
            raise unknown("order", self.order, ("predict-first", "learn-first"))

    @property
    def stateful(self) -> bool:
        """Whether it learns from the stream."""
        return False

    @abstractmethod
    def predict(self, sample: Sample) -> Prediction:
        """The decision for one image in the present state, which it leaves as it is."""

    def learn(self, sample: Sample) -> None:  # noqa: B027 - nothing, where there is no state
        """Take one image into the state, without a prediction."""

    def step(self, sample: Sample) -> Prediction:
        """Predict and learn, in the method's `order`."""
        if self.order == "learn-first":
            self.learn(sample)
            return self.predict(sample)
        prediction = self.predict(sample)
        self.learn(sample)
        return prediction

    def predict_many(self, samples: Sequence[Sample]) -> list[Prediction]:
        """`predict` for each; a method may do them together, with the same result."""
        return [self.predict(s) for s in samples]

    def step_many(self, samples: Sequence[Sample]) -> list[Prediction]:
        """`step` for each, in order."""
        if not self.stateful:
            return self.predict_many(samples)
        return [self.step(s) for s in samples]

    def reset(self) -> None:  # noqa: B027
        """Forget everything learned."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise StateError(
                f"method {self.name!r} keeps no state, but entry "
                f"{next(iter(state))!r} came; it was saved by another method"
            )

    def merge(self, other: Method) -> None:
        """Take in what another copy of this method learned elsewhere."""
        if type(other) is not type(self):
            raise StateError(
                f"cannot merge the state of {other.name!r} into {self.name!r}; "
                "merge copies of one method"
            )

    def clone(self) -> Method:
        """A fresh copy: same hyper-parameters, no state."""
        copy = replace(self)
        copy.name = self.name  # type: ignore[misc]  # a preset's name lives on the instance
        return copy

    @property
    def params(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if "help" in f.metadata}


@dataclass(kw_only=True, eq=False)
class PriorMethod(PriorOptions, Method):
    """A method with a class prior behind it, for logit adjustment or for more.

    The prior is kept only if something reads it; without it the method has no state.
    """

    adjust: Literal["none", "before", "per-view", "after"] = option(
        "none",
        "logit adjustment z − τ·log p̃: of every view before selection, of each kept view before "
        "the average, or of the averaged distribution",
    )
    tau: float = option(1.0, "strength τ of the logit adjustment")
    item: Literal["base", "mean-logits"] = option(
        "base", "what the prior learns from an image: its base view, or the mean logits of all"
    )
    warmup: int = option(0, "images to learn from before the prior is used")

    _prior: ClassPrior | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_prior()
        if self.adjust not in (places := ("none", "before", "per-view", "after")):
            raise unknown("place of the logit adjustment", self.adjust, places)
        if self.item not in ("base", "mean-logits"):
            raise unknown("item", self.item, ("base", "mean-logits"))

    @property
    def stateful(self) -> bool:
        return self.adjust != "none"

    @property
    def prior(self) -> ClassPrior | None:
        """The estimate so far; None before the first image, or where none is kept."""
        return self._prior

    def log_prior(self) -> Tensor | None:
        """log p̃ if it is in use and known."""
        if self._prior is None or self._prior.seen < max(self.warmup, 1):
            return None
        return self._prior.log_prior

    def learn(self, sample: Sample) -> None:
        if not self.stateful:
            return
        if self._prior is None:
            self._prior = ClassPrior(sample.logits.shape[-1], self)
        item = sample.logits[0] if self.item == "base" else sample.logits.float().mean(0)
        self._prior.observe(F.log_probs(item))

    def reset(self) -> None:
        self._prior = None

    def state_dict(self) -> dict[str, Tensor]:
        if self._prior is None:
            return {}
        return {f"prior.{k}": v for k, v in self._prior.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not self.stateful or not state:
            super().load_state_dict(state)
            return self.reset()
        entries = {k.removeprefix("prior."): v for k, v in state.items()}
        if "counts" not in entries:
            raise StateError(
                f"state of {self.name!r} does not fit: entry 'prior.counts' is missing; "
                "it was saved by another method"
            )
        prior = ClassPrior(len(entries["counts"]), self)
        prior.load_state_dict(entries)
        self._prior = prior

    def merge(self, other: Method) -> None:
        super().merge(other)
        assert isinstance(other, PriorMethod)
        if other._prior is None:
            return
        if self._prior is None:
            self._prior = ClassPrior(other._prior.num_classes, self)
        self._prior.merge(other._prior)


@dataclass(kw_only=True, eq=False)
class ViewMethod(PriorMethod):
    """Measure every view, keep the surest, aggregate them. A subclass supplies the measure."""

    ratio: float = option(0.1, "share of the views to keep, at least one view")
    count: int | None = option(None, "number of views to keep, instead of the ratio")
    aggregate: Literal["probs", "logits", "vote"] = option(
        "probs", "mean of the kept probabilities, mean of their logits, or one vote a view"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        F.keep_count(self.count or 1, self.ratio, self.count)
        if self.aggregate not in ("probs", "logits", "vote"):
            raise unknown("aggregation", self.aggregate, ("probs", "logits", "vote"))

    @abstractmethod
    def measure(self, log_p: Tensor, log_prior: Tensor | None) -> Tensor:
        """Uncertainty of every view, low = sure.  (…, V, L) → (…, V)"""

    def class_q(self, log_prior: Tensor | None) -> Tensor | None:
        """The class-specific q, for methods that have one."""
        return None

    def predict(self, sample: Sample) -> Prediction:
        return self.predict_many([sample])[0]

    def predict_many(self, samples: Sequence[Sample]) -> list[Prediction]:
        out: list[Prediction] = []
        log_prior = self.log_prior()
        for group in _chunks(samples):
            out += self._decide(torch.stack([s.logits for s in group]), log_prior)
        return out

    def _decide(self, logits: Tensor, log_prior: Tensor | None) -> list[Prediction]:
        """All of a batch at once.  (B, V, L)"""
        place = self.adjust if log_prior is not None else "none"
        log_p = F.log_probs(logits)
        prior = log_prior if log_prior is None else log_prior.to(log_p)
        if place == "before" and prior is not None:
            log_p = F.adjust(log_p, prior, self.tau)
        entropy = self.measure(log_p, prior)  # (B, V)
        order = F.rank_views(entropy)
        keep = F.keep_count(order.shape[-1], self.ratio, self.count)
        kept = order[:, :keep]
        if place == "per-view" and prior is not None:
            log_p = F.adjust(log_p, prior, self.tau)
        if self.aggregate == "vote":
            probs = F.vote(log_p, order, keep)
        else:
            mean = F.mean_probs if self.aggregate == "probs" else F.mean_logits
            probs = mean(F.take_views(log_p, kept)).exp()
        if place == "after" and prior is not None:
            floor = torch.finfo(probs.dtype).tiny
            probs = F.adjust(probs.clamp_min(floor).log(), prior, self.tau).exp()
        q = self.class_q(prior)
        prior_probs = None if prior is None else prior.exp()
        return [
            Prediction(probs=probs[i], entropy=entropy[i], kept=kept[i], q=q, prior=prior_probs)
            for i in range(len(logits))
        ]


def _chunks(samples: Sequence[Sample], most: int = 1 << 22) -> Iterable[list[Sample]]:
    """Runs of equal shape, dtype and device, of at most `most` logits together."""
    group: list[Sample] = []
    for sample in samples:
        z = sample.logits
        if group and (
            (z.shape, z.dtype, z.device)
            != (group[0].logits.shape, group[0].logits.dtype, group[0].logits.device)
            or (len(group) + 1) * z.numel() > most
        ):
            yield group
            group = []
        group.append(sample)
    if group:
        yield group
