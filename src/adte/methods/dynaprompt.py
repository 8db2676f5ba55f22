"""DynaPrompt: a buffer of prompts that the stream tunes, the image choosing among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from adte.errors import InputError, StateError, unknown
from adte.methods.base import Method, Prediction, Sample
from adte.methods.measure import check_entries
from adte.methods.prompt_tuning import Episode, PromptLearner, PromptMethod, off_record
from adte.methods.registry import register
from adte.options import option

__all__ = ["Buffer", "DynaPrompt", "choose"]


def choose(entropy: Tensor, gap: Tensor, first: int, among: Tensor, released: bool) -> list[int]:
    """The prompts to tune, the initial one last.  (M,), (M,), slot of v₀, (M,) candidates

    The rule: those no less sure than v₀ (E ≤ E_v₀) and no less sensitive to the augmentation
    (D ≥ D_v₀). The released code ranks by falling E and by falling D, takes as many of the second
    ranking as stand before v₀ in the first, intersects them with those behind v₀ in the first,
    and then reads the prompts' numbers as places in the first ranking; one named twice counts once.

    >>> E, D = torch.tensor([0.9, 1.2, 0.5, 0.7]), torch.tensor([0.3, 0.1, 0.8, 0.6])
    >>> every = torch.ones(4, dtype=torch.bool)
    >>> choose(E, D, 0, every, released=False), choose(E, D, 0, every, released=True)
    ([2, 3, 0], [3, 0])
    """
    if released:
        ranks = entropy.argsort(descending=True, stable=True).tolist()
        place = ranks.index(first)
        behind = ranks[min(place + 1, len(ranks) - 1) :]
        ahead = gap.argsort(descending=True, stable=True).tolist()[:place]
        found = [ranks[i] for i in sorted(set(behind) & set(ahead))]
    else:
        good = among & (entropy <= entropy[first]) & (gap >= gap[first])
        found = good.nonzero().flatten().tolist()
    return [i for i in dict.fromkeys(found) if i != first] + [first]


class Buffer:
    """M context deltas (M, n, w), their order of use (M,), longest unused first, and use counts.

    Class weights of used slots are kept beside them until the model or its classes change.
    """

    def __init__(self, deltas: Tensor, order: Tensor, uses: Tensor) -> None:
        self.deltas, self.order, self.uses = deltas, order, uses
        self.learner: PromptLearner | None = None
        self.weights: list[Tensor | None] = [None] * len(deltas)  # (L, D) each

    @classmethod
    def empty(cls, size: int, like: Tensor) -> Buffer:
        deltas = torch.zeros(size, *like.shape).to(like)
        return cls(deltas, torch.arange(size), torch.zeros(size, dtype=torch.long))

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffer, (self.deltas, self.order, self.uses)  # the learner holds the model

    def copy(self) -> Buffer:
        new = Buffer(self.deltas.clone(), self.order.clone(), self.uses.clone())
        new.learner, new.weights = self.learner, list(self.weights)
        return new

    def tensors(self) -> dict[str, Tensor]:
        return {"deltas": self.deltas, "order": self.order, "uses": self.uses}

    def first(self) -> int:
        """The slot of the initial prompt v₀: an unused one; if there is none, the oldest, freed."""
        slot = int(self.order[0])
        if bool((self.uses > 0).all()):
            self.deltas[slot], self.uses[slot] = 0.0, 0
        return slot

    def touch(self, slots: list[int]) -> None:
        """Count them as used and move them to the end of the order."""
        rest = [i for i in self.order.tolist() if i not in slots]
        self.order = torch.tensor(rest + slots)
        self.uses[slots] += 1

    def class_weights(self, learner: PromptLearner) -> list[Tensor]:
        """(L, D) of every slot."""
        if self.learner is not learner:
            self.learner, self.weights = learner, [None] * len(self.deltas)
        for i, known in enumerate(self.weights):
            if int(self.uses[i]) and known is None:
                self.weights[i] = learner.class_weights(learner.initial + self.deltas[i])
        return [
            learner.initial_weights if w is None or not int(n) else w
            for w, n in zip(self.weights, self.uses, strict=True)
        ]


@register("dynaprompt")
@dataclass(kw_only=True, eq=False)
class DynaPrompt(PromptMethod):
    """Prompts of a buffer that suit the image, tuned on it and kept for the stream.

    A slot m of the buffer holds a delta on the embeddings of "a photo of a", zero at first.
    1. v₀, the initial prompt, takes an unused slot; if there is none, that longest unused.
    2. For every prompt: E_m, the mean entropy of the views, and D_m, the mean over augmented views
       of the base view's highest logit minus the view's.
    3. Chosen are v₀ and the used prompts with E_m ≤ E_v₀ and D_m ≥ D_v₀ (`choose`). The paper names
       the two measures; the inequalities are inferred. `released` is the published code's choice,
       among all slots, where AdamW's decay also shrinks the deltas that were not chosen.
    4. The 10 % of the views of lowest entropy, averaged over the chosen prompts, are kept; each
       chosen delta takes one step of a fresh AdamW down the entropy of the mean distribution.
    5. The base view's logits under the chosen prompts, averaged, are the answer.

    `predict` does all this on a copy of the buffer, `learn` keeps it; `step` does it once. With 1
    slot it is TPT without decay. Merging interleaves two buffers by recency; the latest M stay.
    """

    reference = "Xiao et al., DynaPrompt: Dynamic Test-Time Prompt Tuning, ICLR 2025"

    prompts: int = option(12, "slots of the buffer")
    choice: Literal["rule", "released"] = option(
        "rule", "which prompts are tuned: by the two inequalities, or as the published code does"
    )

    _buffer: Buffer | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompts < 1:
            raise InputError(f"prompts={self.prompts} of the buffer must be at least 1")
        if self.choice not in ("rule", "released"):
            raise unknown("choice", self.choice, ("rule", "released"))

    @property
    def stateful(self) -> bool:
        return True

    # ------------------------------------------------------------------ one image

    def predict(self, sample: Sample) -> Prediction:
        return self._adapt(sample)[0]

    def learn(self, sample: Sample) -> None:
        self._keep(sample, self._adapt(sample)[1])

    def step(self, sample: Sample) -> Prediction:
        if self.order == "learn-first":
            return super().step(sample)
        prediction, buffer = self._adapt(sample)
        self._keep(sample, buffer)
        return prediction

    def _keep(self, sample: Sample, buffer: Buffer) -> None:
        super().learn(sample)  # the prior, after the image was tuned on: as `predict` saw it
        self._buffer = buffer

    def _here(self, e: Episode) -> Buffer:
        """A copy of the buffer, checked against the text tower and on its device."""
        like = e.learner.initial
        if self._buffer is None:
            return Buffer.empty(self.prompts, like)
        if self._buffer.deltas.shape[1:] != like.shape:
            raise InputError(
                f"method {self.name!r} has learned contexts of shape "
                f"{tuple(self._buffer.deltas.shape[1:])}, but this model's are "
                f"{tuple(like.shape)}; reset it or use another copy"
            )
        buffer = self._buffer.copy()
        buffer.deltas = buffer.deltas.to(like)
        return buffer

    @off_record
    def _adapt(self, sample: Sample) -> tuple[Prediction, Buffer]:
        e = self.begin(sample)
        buffer, weights_of = self._here(e), e.learner.class_weights
        first = buffer.first()
        z = torch.stack([e.logits(w) for w in buffer.class_weights(e.learner)])  # (M, V, L)
        certainty = z.amax(-1)  # (M, V)
        gap = (certainty[:, :1] - certainty[:, 1:]).sum(-1) / max(1, z.shape[1] - 1)
        entropy = self.measure(self.log_probs(z, e.log_prior, "before"), e.log_prior).mean(-1)
        used = (buffer.uses > 0).to(z.device)
        chosen = choose(entropy, gap, first, used, self.choice == "released")
        buffer.touch(chosen)
        views, kept = self.select(z[chosen], e.log_prior)
        mine, initial = e.take(kept), e.learner.initial

        def loss(delta: Tensor) -> Tensor:
            logits = mine.logits(weights_of(initial + delta))
            return self.loss(logits, e.log_prior) / len(chosen)  # the chosen's mean, one by one

        if self.choice == "released":  # all deltas are one parameter there
            others = [i for i in range(self.prompts) if i not in chosen]
            buffer.deltas[others] *= (1 - self.lr * self.decay) ** self.steps
            buffer.weights = [None] * self.prompts
        answers = []
        for slot in chosen:
            buffer.deltas[slot] = self.descend(buffer.deltas[slot], loss)
            tuned = buffer.weights[slot] = weights_of(initial + buffer.deltas[slot])
            answers.append(e.take([0]).logits(tuned)[0])
        return self.answer(torch.stack(answers).mean(0), e, views, kept), buffer

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        super().reset()
        self._buffer = None

    def state_dict(self) -> dict[str, Tensor]:
        if self._buffer is None:
            return {}
        own = {f"buffer.{k}": v.clone() for k, v in self._buffer.tensors().items()}
        return own | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return self.reset()
        prior = {k: v for k, v in state.items() if k.startswith("prior.")}
        own = {k: v for k, v in state.items() if k not in prior}
        deltas = own.get("buffer.deltas")
        if deltas is None or deltas.ndim != 3 or bool(prior) != self.uses_prior:
            raise StateError(
                f"state of {self.name!r} does not fit: it is not a buffer of prompts with"
                f"{'' if self.uses_prior else 'out'} a class prior; it was saved by another method "
                "or with other options"
            )
        wide = torch.promote_types(deltas.dtype, torch.float32)
        buffer = Buffer.empty(self.prompts, torch.zeros(deltas.shape[1:], dtype=wide))
        check_entries(self.name, own, {f"buffer.{k}": v for k, v in buffer.tensors().items()})
        order, uses = own["buffer.order"], own["buffer.uses"]
        whole = order.sort().values.tolist() == list(range(self.prompts))
        if not whole or bool((uses < 0).any()) or not bool(deltas.isfinite().all()):
            raise StateError(
                f"state of {self.name!r} does not fit: its order is not one of {self.prompts} "
                "slots, or a number is impossible; save it again"
            )
        super().load_state_dict(prior)
        self._buffer = Buffer(deltas.clone(), order.clone(), uses.clone())

    def merge(self, other: Method) -> None:
        Method.merge(self, other)
        assert isinstance(other, DynaPrompt)
        if other._buffer is None:
            return
        mine = self._buffer or Buffer.empty(self.prompts, other._buffer.deltas[0])
        check_entries(self.name, other._buffer.tensors(), mine.tensors())
        super().merge(other)
        recent = [
            [(b.deltas[i], int(b.uses[i])) for i in b.order.tolist()[::-1] if int(b.uses[i])]
            for b in (mine, other._buffer)
        ]
        both = [pair for rank in zip_longest(*recent) for pair in rank if pair][: self.prompts]
        merged = Buffer.empty(self.prompts, mine.deltas[0])
        for slot, (delta, uses) in enumerate(reversed(both), start=self.prompts - len(both)):
            merged.deltas[slot], merged.uses[slot] = delta.to(merged.deltas), uses
        self._buffer = merged
