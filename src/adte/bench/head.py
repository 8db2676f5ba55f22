"""The cost of the ADTE head beside the Shannon head, for 64 × 1000 logits."""

from __future__ import annotations

from typing import Any

import torch

from adte.bench import timing
from adte.bench.conditions import conditions
from adte.core import functional as F
from adte.core.machine import threads

__all__ = ["run"]


def run(views: int = 64, classes: int = 1000, repeats: int = 301) -> dict[str, Any]:
    """Entropy, selection and aggregation of one image: Shannon against adaptive Tsallis."""
    g = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(views, classes, generator=g)
    log_prior = torch.log_softmax(torch.randn(classes, generator=g), -1)
    keep = F.keep_count(views)

    def head(entropy: Any) -> torch.Tensor:
        log_p = F.log_probs(logits)
        kept = F.rank_views(entropy(log_p))[:keep]
        return F.mean_probs(F.take_views(log_p, kept))

    def adte(log_p: torch.Tensor) -> torch.Tensor:
        return F.adaptive_tsallis(log_p, F.q_from_prior(log_prior))

    def vanishing(log_p: torch.Tensor) -> torch.Tensor:
        return F.adaptive_tsallis(log_p, F.q_from_prior(log_prior), "vanishing")

    candidates = {
        "Shannon head": lambda: head(F.shannon),
        "ADTE head (q from the prior included)": lambda: head(adte),
        "ADTE head, vanishing form": lambda: head(vanishing),
    }
    with threads(1):
        seconds = timing.medians(candidates, repeats)
    base, ours, _ = seconds.values()
    rows = [{"name": n, "seconds": s, "ratio": s / base} for n, s in seconds.items()]
    meaning = "ADTE head over Shannon head"
    facts = {"views": views, "classes": classes, "repeats": repeats}
    return timing.result(rows, ours / base, meaning, **conditions(threads=1), **facts)
