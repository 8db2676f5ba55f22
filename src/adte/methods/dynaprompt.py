"""DynaPrompt: a buffer of prompts that the stream tunes, the image choosing among them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from adte.core import state as declared
from adte.core.batch import Batch
from adte.core.errors import InputError, StateError
from adte.core.options import option
from adte.core.prediction import Prediction, Predictions
from adte.core.state import Entry, State
from adte.methods.base import AdaptingMethod
from adte.methods.prompt_tuning import PromptLearner, PromptMethod
from adte.methods.registry import register
from adte.methods.tracking import off_record

__all__ = ["DynaPrompt", "choose"]


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


def _interleaved(name: str, ours: State, theirs: State) -> Tensor:
    """The used slots of two buffers in turn, the latest of either first; the first M stay."""
    recent = [
        [(s, i) for i in s["buffer.order"].tolist()[::-1] if int(s["buffer.uses"][i])]
        for s in (ours, theirs)
    ]
    out = torch.zeros_like(ours[name])
    if name == "buffer.order":
        return torch.arange(len(out)).to(out)
    both = [slot for rank in zip_longest(*recent) for slot in rank if slot][: len(out)]
    for place, (s, i) in enumerate(reversed(both), start=len(out) - len(both)):
        out[place] = s[name][i].to(out)
    return out


@register("dynaprompt")
@dataclass(kw_only=True, eq=False)
class DynaPrompt(AdaptingMethod, PromptMethod):
    """Prompts chosen from a buffer to suit the image, tuned on it, and kept for later images.

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

    `predict` does all this and forgets it, `learn` keeps it; `step` does it once. With 1 slot it is
    TPT without decay. Merging interleaves two buffers by recency; the latest M stay.
    """

    reference = (
        "Xiao et al., DynaPrompt: Dynamic Test-Time Prompt Tuning, ICLR 2025, arXiv:2501.16404, "
        "github.com/zzzx1224/DynaPrompt"
    )
    sequential = True

    prompts: int = option(12, "prompts that the buffer holds", low=1)
    choice: Literal["rule", "released"] = option(
        "rule", "how prompts are chosen: by the paper's two inequalities (rule), or as released"
    )

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        """M deltas on the context, their order of use, longest unused first, and use counts."""
        slots = (self.prompts,)
        return {
            "buffer.deltas": Entry((*slots, "tokens", "width"), None, _interleaved),
            "buffer.order": Entry(slots, torch.int64, _interleaved),
            "buffer.uses": Entry(slots, torch.int64, _interleaved),
        } | super().entries()

    @off_record
    def initial(self, batch: Batch) -> State:
        like, device = self.learner(batch).initial, batch.logits.device
        sizes = self.sizes(batch) | {"tokens": like.shape[0], "width": like.shape[1]}
        state = declared.fresh(self.name, self.entries(), sizes, device)
        state["buffer.deltas"] = state["buffer.deltas"].to(like.dtype)
        state["buffer.order"] = torch.arange(self.prompts).to(device)
        return state

    def check_state(self, state: State) -> None:
        deltas, order, uses = (state[f"buffer.{k}"] for k in ("deltas", "order", "uses"))
        whole = order.sort().values.tolist() == list(range(self.prompts))
        good = deltas.dtype in (torch.float32, torch.float64) and bool(deltas.isfinite().all())
        if not (whole and good) or bool((uses < 0).any()):
            raise StateError(
                f"state of {self.name!r} does not fit: its order is not one of {self.prompts} "
                "slots, or a number is impossible; save it again"
            )

    # ------------------------------------------------------------------ one image

    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        return Predictions.stack(readouts)

    def take(self, state: State, image: Batch, change: State) -> None:
        self.track(state, image.logits)  # after the image was tuned on, with the prior so far
        state.update(change)

    @off_record
    def adapted(self, state: State, image: Batch) -> tuple[Prediction, State]:
        """The prediction, and the buffer after it."""
        e = self.episode(image, self.log_prior(state, image.logits.double()))
        initial, weights_of = e.learner.initial, e.learner.class_weights
        deltas, order, uses = self._buffer(state, initial)
        first = order[0]  # the slot of v₀: an unused one; if there is none, the oldest is freed
        if all(uses):
            deltas[first], uses[first] = 0.0, 0
        z = torch.stack([e.logits(w) for w in _weights(e.learner, deltas, uses)])  # (M, V, L)
        certainty = z.amax(-1)  # (M, V)
        gap = (certainty[:, :1] - certainty[:, 1:]).sum(-1) / max(1, z.shape[1] - 1)
        entropy = self.entropy(self.log_probs(z, e.log_prior, "before"), e.log_prior).mean(-1)
        used = torch.tensor([n > 0 for n in uses]).to(z.device)
        chosen = choose(entropy, gap, first, used, self.choice == "released")
        views, kept = self.select(z[chosen], e.log_prior)
        mine = e.take(kept)

        def loss(delta: Tensor) -> Tensor:
            logits = mine.logits(weights_of(initial + delta))
            return self.loss(logits, e.log_prior) / len(chosen)  # the chosen's mean, one by one

        if self.choice == "released":  # all deltas are one parameter there
            others = [i for i in range(self.prompts) if i not in chosen]
            deltas[others] *= (1 - self.lr * self.decay) ** self.steps
        answers = []
        for slot in chosen:
            uses[slot] += 1
            deltas[slot] = self.descend(deltas[slot], loss)
            tuned = weights_of(initial + deltas[slot])
            e.learner.known[_key(deltas[slot])] = tuned
            answers.append(e.take([0]).logits(tuned)[0])
        device = image.logits.device
        buffer = {
            "buffer.deltas": deltas.to(device),
            "buffer.order": torch.tensor([i for i in order if i not in chosen] + chosen).to(device),
            "buffer.uses": torch.tensor(uses).to(device),
        }
        return self.answer(torch.stack(answers).mean(0), e.log_prior, views, kept), buffer

    def _buffer(self, state: State, like: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """Deltas, order and uses, to be changed; refused if they are of another text tower."""
        if state["buffer.deltas"].shape[1:] != like.shape:
            raise InputError(
                f"method {self.name!r} has learned contexts of shape "
                f"{tuple(state['buffer.deltas'].shape[1:])}, but this model's are "
                f"{tuple(like.shape)}; reset it or use another copy"
            )
        deltas = state["buffer.deltas"].to(like, copy=True)
        return deltas, state["buffer.order"].tolist(), state["buffer.uses"].tolist()


def _key(delta: Tensor) -> bytes:
    return delta.cpu().numpy().tobytes()


def _weights(learner: PromptLearner, deltas: Tensor, uses: list[int]) -> list[Tensor]:
    """(L, D) of every slot; the learner remembers those of the last image and of its tuning."""
    now: dict[bytes, Tensor] = {}
    keys = [_key(d) for d in deltas.cpu()]
    for key, delta, n in zip(keys, deltas, uses, strict=True):
        if key not in now:
            known = learner.known.get(key) if n else learner.initial_weights
            now[key] = learner.class_weights(learner.initial + delta) if known is None else known
    learner.known = now
    return [now[key] for key in keys]
