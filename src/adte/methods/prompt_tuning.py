"""The base of prompt tuners: a context in embedding space, its class weights and its descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError
from adte.core.options import option, part
from adte.core.prediction import Prediction, Predictions
from adte.methods._features import features_of
from adte.methods.image_tower import Descent, stamp, twin
from adte.methods.parts import Selection
from adte.methods.tracking import EntropyMethod, images, marginal, off_record
from adte.models._towers import text_lengths
from adte.models.base import Model

__all__ = ["Episode", "PromptLearner", "PromptMethod", "adamw"]

R = TypeVar("R")

# Texts with no word in common: the tokens that they all begin with are the tokeniser's own.
PROBES = ("dog", "7")

BUDGET = 512 << 20  # bytes of activations that are kept rather than computed again
CUDA_BUDGET = 4 << 30  # the same on CUDA, where small passes waste the device; if a quarter is free
FEWEST = 8  # classes of one length that are worth a pass of their own


def adamw(
    x: Tensor, gradient: Callable[[Tensor], Tensor], steps: int, lr: float, decay: float
) -> Tensor:
    """x after `steps` of AdamW (β 0.9 and 0.999, ε 1e-8) along gradient(x), without moments left.

    The first step is x·(1 − lr·decay) − lr·g/(|g| + ε): only the sign of g matters.

    >>> adamw(torch.tensor([0.3, -0.2]), lambda x: torch.tensor([4.0, -0.001]), 1, 5e-3, 0.01)
    tensor([ 0.2950, -0.1950])
    """
    descent, now = Descent("adam", lr, decay=decay), {"x": x}
    moments = descent.start(now)
    for step in range(1, steps + 1):
        now, moments = descent.step(now, {"x": gradient(now["x"])}, moments, step)
    return now["x"]


def _shared(ids: Tensor) -> int:
    """How many leading tokens all rows have in common.  (N, T)"""
    return int((ids == ids[:1]).all(0).long().cumprod(0).sum())


class PromptLearner:
    """Class weights as a function of the context of "a photo of a {name}.".

    Where the context's tokens lie is read off the tokeniser: after what every text begins with,
    and as far as the context alone and all prompts agree. So any text tower will do that takes
    embeddings. The model is read only: its parameters, gradients and flags stay as they are.

    Classes go through the text tower in groups of like length, so that little is spent on padding.
    With gradients, a tower keeps its activations for the way back. Where those of all classes fit
    into a budget they are kept, and those of the initial context, where every image begins, for all
    images. Otherwise each group's are computed again when they are needed, so that memory grows
    with the group, not with the classes.

    Attributes:
        initial: (n, w) the embeddings of the context, float32 or wider.
        known: class weights (L, D) of contexts that may come again, by whatever names them.
        chunk: classes a group at most; 0: all classes at once, activations kept; None: as many as
            fit into the budget (512 MB; on CUDA 4 GB, but a quarter of what is free at most), by
            what one class was seen to keep.
    """

    @off_record
    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        context: str = "a photo of a",
        chunk: int | None = None,
    ) -> None:
        self.model, self.classes, self.context, self.chunk = model, tuple(classes), context, chunk
        self.stamp = stamp(model)
        self.known: dict[bytes, Tensor] = {}
        self.twin = twin(model)  # its parameters ask for no gradient, so nothing is kept for them
        prompts = [f"{context} {name.replace('_', ' ')}." for name in classes]
        head = len(PROBES)
        ids, embeddings = model.token_embeddings([*PROBES, context, *prompts])
        self.start, self.end = _shared(ids[: head + 1]), _shared(ids[head:])
        if self.end <= self.start:
            raise InputError(
                f"context={context!r} has no tokens of its own in the prompts of model "
                f"{model.name!r}; choose words that stand before the class name"
            )
        ids, embeddings = ids[head + 1 :], embeddings[head + 1 :]
        self.lengths, self.order = text_lengths(ids).sort(stable=True)
        self.ids, self.embeddings = ids[self.order], embeddings[self.order]  # the shortest first
        self.initial = F.wide(self.embeddings[0, self.start : self.end]).clone()

    @cached_property
    @off_record
    def initial_weights(self) -> Tensor:
        """(L, D) of the initial context."""
        return self.class_weights(self.initial)

    @cached_property
    def activations(self) -> int:
        """Bytes that the text tower keeps for the way back of the longest prompt."""
        known = {p.untyped_storage().data_ptr() for p in self.twin.parameters()}
        kept: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
            return x

        context = self.initial.detach().requires_grad_()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            self._encode(context, self.ids[-1:], self.embeddings[-1:])
        return sum(kept.values())

    @cached_property
    def groups(self) -> tuple[list[int], bool]:
        """Classes of each pass, and whether activations are computed again."""
        total, most = len(self.ids), self.chunk
        if most == 0:
            return [total], False
        if most is None:
            most = max(1, min(total, _budget(self.ids.device) // max(1, self.activations)))
        sizes: list[int] = []
        start = 0
        for end in [*(self.lengths.diff().nonzero().flatten() + 1).tolist(), total]:
            if end - start >= FEWEST or end == total:  # fewer of one length join the next
                sizes += [most] * ((end - start) // most)
                sizes += [rest] if (rest := (end - start) % most) else []
                start = end
        return sizes, total > most

    def class_weights(self, context: Tensor) -> Tensor:
        """Unit class vectors, differentiable in the context.  (…, n, w) → (…, L, D)"""
        if context.ndim > 2:  # one context at a time: the same numbers in whatever company
            return torch.stack([self.class_weights(c) for c in context])
        keep = self.chunk is None and torch.is_grad_enabled() and not self.groups[1]
        if keep and torch.equal(context, self.initial):
            return _Recalled.apply(context, self)  # type: ignore[no-any-return,no-untyped-call]
        return self._pass(context)

    @cached_property
    def first_pass(self) -> tuple[Tensor, Tensor]:
        """The initial context and its class weights, with the way back from them kept."""
        with torch.inference_mode(False), torch.enable_grad():
            start = self.initial.clone().requires_grad_()
            return start, self._pass(start)

    def _pass(self, context: Tensor) -> Tensor:
        sizes, again = self.groups
        run: Any = (
            partial(checkpoint, use_reentrant=False, preserve_rng_state=False) if again else _call
        )
        parts = zip(torch.split(self.ids, sizes), torch.split(self.embeddings, sizes), strict=True)
        out = torch.cat([run(self._encode, context, *part) for part in parts])
        return out[self.order.argsort()]

    def _encode(self, context: Tensor, ids: Tensor, frozen: Tensor) -> Tensor:
        middle = context.to(frozen).expand(len(ids), -1, -1)
        filled = torch.cat([frozen[:, : self.start], middle, frozen[:, self.end :]], dim=1)
        return F.wide(self.twin.encode_embeddings(ids, filled))


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return BUDGET
    return min(CUDA_BUDGET, torch.cuda.mem_get_info(device)[0] // 4)


class _Recalled(torch.autograd.Function):
    """Class weights of the initial context, with the way back through the learner's first pass."""

    @staticmethod
    def forward(ctx: Any, context: Tensor, learner: PromptLearner) -> Tensor:
        ctx.learner = learner
        return learner.first_pass[1].detach().clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        start, weights = ctx.learner.first_pass
        return torch.autograd.grad(weights, start, slope, retain_graph=True)[0], None


def _call(work: Callable[..., R], *args: Any) -> R:
    return work(*args)


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
    mean distribution of those kept. The classes' weights are those of `context`; those of the
    batch only feed the prior.
    """

    needs = frozenset({"features", "text tower", "embeddings"})

    keep: Selection = part(Selection(), "which views are kept")
    lr: float = option(5e-3, "learning rate of AdamW", low=0)
    decay: float = option(0.01, "weight decay of AdamW", low=0)
    steps: int = option(1, "steps of AdamW per image", low=0)
    context: str = option("a photo of a", "words before the class name, from which tuning starts")
    chunk: int | None = option(
        None,
        "classes per pass of the text tower; 0 takes all; by default what fits in 512 MB, on CUDA "
        "in 4 GB",
        low=0,
    )

    _learner: PromptLearner | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_learner": None}  # it holds the model; made when needed

    def adapt(self, e: Episode) -> Prediction:
        """The prediction of one image, after tuning on it."""
        raise NotImplementedError(f"{type(self).__name__} defines neither adapt nor decide")

    @off_record
    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        each = images(batch, readouts)
        return Predictions.stack([self.adapt(self.episode(image, prior)) for image, prior in each])

    def learner(self, batch: Batch) -> PromptLearner:
        """That of the batch's model and classes; made anew for others, or if the model changed."""
        model, classes = batch.require("model"), tuple(batch.require("classes"))
        if len(classes) != batch.classes:
            raise InputError(
                f"{len(classes)} class names do not go with logits over {batch.classes} classes; "
                "pass one name per column"
            )
        known, now = self._learner, stamp(model)
        if known is None or (known.model, known.classes, known.stamp) != (model, classes, now):
            known = self._learner = PromptLearner(model, classes, self.context, self.chunk)
        return known

    def episode(self, image: Batch, log_prior: Tensor | None = None) -> Episode:
        """An image, a batch of one, before its learner."""
        features = features_of(image)[0]
        prior = None if log_prior is None else log_prior.to(features, copy=True)
        return Episode(self.learner(image), features, image.context.scale, prior)

    def select(self, logits: Tensor, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Every view's uncertainty (V,) and the views to keep (K,), surest first.  (…, V, L)

        Uncertainties under several prompts are averaged.
        """
        entropy = self.entropy(self.log_probs(logits, log_prior, "before"), log_prior)
        entropy = entropy.reshape(-1, entropy.shape[-1]).mean(0)
        return entropy, self.keep(entropy)

    def loss(self, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """The measure of the mean distribution of the kept views.  (K, L) → ()"""
        log_p = self.log_probs(logits, log_prior, "before", "per-view")
        return self.entropy(marginal(log_p), log_prior)

    def penalty(self, weights: Tensor) -> Tensor | float:
        """The part of the loss that class weights (L, D) have by themselves; by default none."""
        return 0.0

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
        """Class weights (L, D) of the tuned context; uncertainty and views by the initial ones.

        `change(logits (K, L), views (K,))` is done to logits before they are measured.
        """
        everything = torch.arange(len(e.features)).to(e.features.device)
        z = change(e.logits(e.learner.initial_weights), everything)
        entropy, kept = self.select(z, e.log_prior)
        mine, weights = e.take(kept), e.learner.class_weights

        def loss(context: Tensor) -> Tensor:
            w = weights(context)
            return self.loss(change(mine.logits(w), kept), e.log_prior) + self.penalty(w)

        return weights(self.descend(e.learner.initial, loss, lr)), entropy, kept
