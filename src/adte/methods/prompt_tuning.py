"""What prompt tuners share: a context in embedding space, its class weights, and its descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from adte import functional as F
from adte.errors import InputError
from adte.methods.base import Prediction, Sample
from adte.methods.measure import EntropyMethod, features_of
from adte.models.base import Model
from adte.options import option

__all__ = ["Episode", "PromptLearner", "PromptMethod", "adamw", "marginal", "off_record"]

P = ParamSpec("P")
R = TypeVar("R")


# Texts with no word in common: the tokens that they all begin with are the tokeniser's own.
PROBES = ("dog", "7")


def off_record(work: Callable[P, R]) -> Callable[P, R]:
    """Do it without gradients, and not in inference mode, whose tensors no gradient may meet."""

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return work(*args, **kwargs)

    return done


def marginal(log_p: Tensor) -> Tensor:
    """Log of the mean distribution of the views, logsumexp(log P) − log K.  (…, K, L) → (…, L)"""
    return log_p.logsumexp(-2) - math.log(log_p.shape[-2])


def adamw(
    x: Tensor, gradient: Callable[[Tensor], Tensor], steps: int, lr: float, decay: float
) -> Tensor:
    """x after `steps` of AdamW (β 0.9 and 0.999, ε 1e-8) along gradient(x), without moments left.

    The first step is x·(1 − lr·decay) − lr·g/(|g| + ε): only the sign of g matters. It is spelled
    out because torch.optim takes seconds to import its compiler and would be used for one step.

    >>> adamw(torch.tensor([0.3, -0.2]), lambda x: torch.tensor([4.0, -0.001]), 1, 5e-3, 0.01)
    tensor([ 0.2950, -0.1950])
    """
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, steps + 1):
        g = gradient(x)
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g.square()
        size = (second / (1 - 0.999**step)).sqrt() + 1e-8
        x = x * (1 - lr * decay) - lr / (1 - 0.9**step) * first / size
    return x


def _shared(ids: Tensor) -> int:
    """How many leading tokens all rows have in common.  (N, T)"""
    return int((ids == ids[:1]).all(0).long().cumprod(0).sum())


class PromptLearner:
    """Class weights as a function of the context of "a photo of a {name}.".

    Where the context's tokens lie is read off the tokeniser: after what every text begins with,
    and as far as the context alone and all prompts agree. So any text tower will do that takes
    embeddings. The model is read only: its parameters, gradients and flags stay as they are.

    Attributes:
        initial: (n, w) the embeddings of the context, float32 or wider.
        chunk: classes a pass through the text tower; with gradients, a chunk's activations are
            computed again when they are needed, so memory grows with the chunk, not the classes.
    """

    @off_record
    def __init__(
        self, model: Model, classes: Sequence[str], context: str = "a photo of a", chunk: int = 64
    ) -> None:
        self.model, self.classes, self.context, self.chunk = model, tuple(classes), context, chunk
        self.place = model.device, model.dtype
        prompts = [f"{context} {name.replace('_', ' ')}." for name in classes]
        head = len(PROBES)
        ids, embeddings = model.token_embeddings([*PROBES, context, *prompts])
        self.start, self.end = _shared(ids[: head + 1]), _shared(ids[head:])
        if self.end <= self.start:
            raise InputError(
                f"context={context!r} has no tokens of its own in the prompts of model "
                f"{model.name!r}; choose words that stand before the class name"
            )
        self.ids, self.embeddings = ids[head + 1 :], embeddings[head + 1 :].detach()
        wide = torch.promote_types(embeddings.dtype, torch.float32)
        self.initial = self.embeddings[0, self.start : self.end].to(wide, copy=True)

    @cached_property
    @off_record
    def initial_weights(self) -> Tensor:
        """(L, D) of the initial context."""
        return self.class_weights(self.initial)

    def class_weights(self, context: Tensor) -> Tensor:
        """Unit class vectors, differentiable in the context.  (…, n, w) → (…, L, D)"""
        if context.ndim > 2:  # one context at a time: the same numbers in whatever company
            return torch.stack([self.class_weights(c) for c in context])
        size = self.chunk or len(self.ids)
        if size >= len(self.ids):
            return self._encode(context, self.ids, self.embeddings)
        parts = zip(torch.split(self.ids, size), torch.split(self.embeddings, size), strict=True)
        run: Any = checkpoint
        return torch.cat([run(self._encode, context, *p, use_reentrant=False) for p in parts])

    def _encode(self, context: Tensor, ids: Tensor, frozen: Tensor) -> Tensor:
        middle = context.to(frozen).expand(len(ids), -1, -1)
        filled = torch.cat([frozen[:, : self.start], middle, frozen[:, self.end :]], dim=1)
        out = self.model.encode_embeddings(ids, filled)
        return out.to(torch.promote_types(out.dtype, torch.float32))


class Episode(NamedTuple):
    """One image before a learner."""

    learner: PromptLearner
    features: Tensor  # (V, D)
    scale: float
    log_prior: Tensor | None  # (L,)

    def logits(self, weights: Tensor) -> Tensor:
        """(…, L, D) → (…, V, L)"""
        return self.scale * self.features @ weights.to(self.features).mT

    def take(self, views: Tensor | list[int]) -> Episode:
        return self._replace(features=self.features[views])  # a copy, free of inference mode


@dataclass(kw_only=True, eq=False)
class PromptMethod(EntropyMethod):
    """A method that tunes the context of the prompts on each image, by features and text alone.

    The measure of uncertainty serves twice: it ranks the views, and the loss is its value on the
    mean distribution of those kept. Logit adjustment acts from its place on: `before` on the
    ranking, the loss and the answer, `per-view` on the loss and the answer, `after` on the answer.
    The classes' weights are those of `context`; the sample's own only feed the prior.
    """

    needs = frozenset({"features", "text tower"})

    ratio: float = option(0.1, "share of the views to keep, at least one view")
    count: int | None = option(None, "number of views to keep, instead of the ratio")
    lr: float = option(5e-3, "learning rate of AdamW")
    decay: float = option(0.01, "weight decay of AdamW")
    steps: int = option(1, "steps of AdamW an image")
    context: str = option("a photo of a", "words before the class name, where tuning begins")
    chunk: int = option(64, "classes a pass through the text tower, 0 for all; bounds the memory")

    _learner: PromptLearner | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        F.keep_count(self.count or 1, self.ratio, self.count)
        for name in ("lr", "decay", "steps", "chunk"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name}={getattr(self, name)} of prompt tuning is negative")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_learner": None}  # it holds the model; made anew when needed

    def begin(self, sample: Sample) -> Episode:
        """The image before its learner, which is made anew for another model or other classes."""
        model, classes = sample.require("model"), tuple(sample.require("classes"))
        if len(classes) != sample.logits.shape[-1]:
            raise InputError(
                f"{len(classes)} class names do not go with logits over "
                f"{sample.logits.shape[-1]} classes; pass one name a column"
            )
        known, place = self._learner, (model.device, model.dtype)
        if known is None or (known.model, known.classes, known.place) != (model, classes, place):
            known = self._learner = PromptLearner(model, classes, self.context, self.chunk)
        features, prior = features_of(sample), self.log_prior()
        prior = None if prior is None else prior.to(features)
        return Episode(known, features, sample.scale, prior)

    def log_probs(self, logits: Tensor, log_prior: Tensor | None, places: str) -> Tensor:
        """Log-probabilities, adjusted if the adjustment begins at one of `places`."""
        if log_prior is None or self.adjust not in places.split():
            return F.log_probs(logits)
        return F.adjust(logits, log_prior, self.tau)

    def select(self, logits: Tensor, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Every view's uncertainty (V,) and the views to keep (K,), surest first.  (…, V, L)

        Uncertainties under several prompts are averaged.
        """
        entropy = self.measure(self.log_probs(logits, log_prior, "before"), log_prior)
        entropy = entropy.reshape(-1, entropy.shape[-1]).mean(0)
        keep = F.keep_count(len(entropy), self.ratio, self.count)
        return entropy, F.rank_views(entropy)[:keep]

    def loss(self, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """The measure of the mean distribution of the kept views.  (K, L) → ()"""
        log_p = self.log_probs(logits, log_prior, "before per-view")
        return self.measure(marginal(log_p), log_prior)

    def descend(
        self, x: Tensor, loss: Callable[[Tensor], Tensor], lr: float | None = None
    ) -> Tensor:
        """x after `steps` of AdamW down the loss; nothing else gets a gradient."""

        def gradient(at: Tensor) -> Tensor:
            at = at.detach().requires_grad_()
            with torch.enable_grad():
                return torch.autograd.grad(loss(at), at)[0]

        return adamw(x, gradient, self.steps, self.lr if lr is None else lr, self.decay)

    def tune(
        self,
        e: Episode,
        lr: float | None = None,
        change: Callable[[Tensor, Tensor], Tensor] = lambda logits, views: logits,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Class weights (L, D) of the tuned context, and what `select` said of the first ones.

        `change(logits (K, L), views (K,))` is done to logits before they are measured.
        """
        everything = torch.arange(len(e.features)).to(e.features.device)
        z = change(e.logits(e.learner.initial_weights), everything)
        entropy, kept = self.select(z, e.log_prior)
        mine, weights = e.take(kept), e.learner.class_weights

        def loss(context: Tensor) -> Tensor:
            return self.loss(change(mine.logits(weights(context)), kept), e.log_prior)

        return weights(self.descend(e.learner.initial, loss, lr)), entropy, kept

    def answer(
        self,
        logits: Tensor,
        e: Episode,
        entropy: Tensor,
        kept: Tensor,
        scores: Tensor | None = None,
    ) -> Prediction:
        """The prediction from the base view's logits (L,)."""
        prior = e.log_prior
        return Prediction(
            probs=self.log_probs(logits, prior, "before per-view after").exp(),
            entropy=entropy,
            kept=kept,
            q=self.class_q(prior),
            prior=None if prior is None else prior.exp(),
            scores=scores,
        )
