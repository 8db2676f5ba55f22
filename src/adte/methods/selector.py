"""Measure every view, keep the surest, aggregate them: SE, TE, Zero, ADTE and plain averaging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Predictions
from adte.methods.parts import Entropy, Selection
from adte.methods.prior import Reading
from adte.methods.registry import preset
from adte.methods.tracking import EntropyMethod, runs

__all__ = ["Selector"]


@dataclass(kw_only=True, eq=False)
class Selector(EntropyMethod):
    """Measure every view, keep the surest, and adjust for what the model favours.

    With an adaptive entropy it is ADTE (`adte.methods.adte`):
    1. p̃ is the class prior, estimated from the stream so far.
    2. q_l = α + (β − α)·u_l, with u the min-max of −log p̃ (`direction="paper"`: favoured classes
       get α) or of log p̃ (`"released"`: they get β). With `few`, among few classes α comes near β.
    3. H = Σ P_l^{q_l}/(1 − q_l) for each view (`form="vanishing"`: Σ (P_l^{q_l} − P_l)/(1 − q_l));
       the lowest are kept and averaged. The logits are adjusted by −τ·log p̃, where `adjust` says.

    Until the prior is known (`warmup` images) nothing is adjusted and the measure is Shannon's.
    With other measures and without the adjustment it is SE, TE, Zero and the plain average of
    views.

    >>> from adte import Sample, create_method
    >>> method = create_method("adte", warmup=2)
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> for image in (z, z.roll(1, 1), z.roll(2, 1)):
    ...     p = method.step(Sample(image))
    >>> p.q.shape, round(float(p.prior.sum()), 4)
    (torch.Size([3]), 1.0)
    >>> create_method("se", ratio=0.5).predict(Sample(z)).kept
    tensor([1, 3])
    >>> create_method("te", q=0.5).predict(Sample(z)).entropy
    tensor([1.1736, 0.8044, 1.4612, 0.9988])
    >>> create_method("zero", ratio=0.5).predict(Sample(z)).probs  # 1 and 2 tie; view 2 settles it
    tensor([0.0000, 0.6667, 0.3333])
    >>> create_method("average").predict(Sample(z)).probs
    tensor([0.2957, 0.3843, 0.3201])
    """

    reference = "Wu et al., Adaptive Debiasing Tsallis Entropy for Test-Time Adaptation, ICLR 2026"

    entropy: Entropy = part(Entropy(), "the measure of uncertainty that ranks the views")
    keep: Selection = part(Selection(), "which views are kept")
    aggregate: Literal["probs", "logits", "vote"] = option(
        "probs", "how the kept views are combined: mean of probabilities, mean of logits, or votes"
    )

    def decide(self, batch: Batch, readouts: Reading | None) -> Predictions:
        return Predictions.join(
            [self._decide(z, prior) for z, prior in _pieces(batch.logits, runs(batch, readouts))]
        )

    def _decide(self, logits: Tensor, log_prior: Tensor | None) -> Predictions:
        """(B, V, L), log p̃ (B or 1, L)"""
        logits = F.wide(logits)
        prior = None if log_prior is None else log_prior.to(logits)[:, None]  # (B or 1, 1, L)
        log_p = F.log_probs(self.adjust(logits, prior, "before"))
        entropy = self.entropy(log_p, prior)  # (B, V)
        order = F.rank_views(entropy)
        keep = self.keep.number(order.shape[-1])
        kept = order[:, :keep]
        if self.adjust.place == "per-view":
            log_p = F.log_probs(self.adjust(log_p, prior, "per-view"))
        if self.aggregate == "vote":
            probs = F.vote(log_p, order, keep)
        else:
            mean = F.mean_probs if self.aggregate == "probs" else F.mean_logits
            probs = mean(F.take_views(log_p, kept)).exp()
        shown = None
        if prior is not None:
            shown = prior[:, 0].expand_as(probs)
            if self.adjust.place == "after":
                floor = torch.finfo(probs.dtype).tiny
                log_mean = probs.clamp_min(floor).log()
                probs = F.log_probs(self.adjust(log_mean, shown, "after")).exp()
        return Predictions(
            probs=probs,
            entropy=entropy,
            kept=kept,
            q=self.entropy.class_q(shown),
            prior=None if shown is None else shown.exp(),
            known=prior is not None,
        )


def _pieces(
    logits: Tensor, parts: Sequence[tuple[slice, Tensor | None]]
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Logits with their prior, few enough images at once for the memory that they take."""
    for rows, prior in parts:
        for piece in F.pieces(logits[rows]):
            mine = prior if prior is None or len(prior) == 1 else prior[piece]
            yield logits[rows][piece], mine


preset(
    "average",
    Selector,
    "Mean over all views, without selection; aggregate=logits or vote gives other averages",
    reference="folklore; as a test-time baseline in Zhang et al., MEMO, NeurIPS 2022",
    ratio=1.0,
)
preset(
    "se",
    Selector,
    "Mean of the views of lowest Shannon entropy, the paper's baseline",
    reference="Shannon 1948; view selection as in Shu et al., TPT, NeurIPS 2022",
)
preset(
    "te",
    Selector,
    "Mean of the views of lowest Tsallis entropy, one q for all classes",
    reference="Wu et al., Adaptive Debiasing Tsallis Entropy, ICLR 2026; Tsallis 1988",
    entropy="tsallis",
)
preset(
    "zero",
    Selector,
    "The 10 % of views with lowest entropy vote for their top class (its authors later: 30 %)",
    reference="Farina et al., Frustratingly Easy Test-Time Adaptation of VLMs, NeurIPS 2024",
    aggregate="vote",
)
