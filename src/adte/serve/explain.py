"""The views and numbers behind a prediction, for people who look at it."""

from __future__ import annotations

from typing import Any

import torch

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.prediction import Prediction
from adte.methods import Method, create_method
from adte.methods.selector import Selector
from adte.methods.tilt import Tilt
from adte.serve.pictures import Part
from adte.serve.streams import Stream

__all__ = ["explain"]

BESIDE = ("zero-shot", "se")  # what a stream's method is compared with


def explain(stream: Stream, batch: Batch, found: Prediction, part: Part) -> dict[str, Any]:
    """The views of one image (a batch of one), prior and q, and what simpler methods say."""
    method, names = stream.clf.method, stream.clf.classes
    log_p = F.log_probs(batch.logits[0])  # (V, L)
    own = found.entropy  # of every view, unless the method looks at one alone
    if own is not None and len(own) < len(log_p):
        own = None
    entropy = F.shannon(log_p) if own is None else own
    kept = None if found.kept is None else found.kept.tolist()
    weights = _weights(method, found, len(log_p))
    best, sure = log_p.max(-1).indices.tolist(), log_p.max(-1).values.exp().tolist()
    views = [
        {
            "box": crop._asdict(),
            "entropy": value,
            "kept": kept is None or v in kept,
            "weight": None if weights is None else weights[v],
            "index": best[v],
            "label": names[best[v]],
            "confidence": sure[v],
            "thumbnail": part.thumbnails[v] if part.thumbnails else None,
        }
        for v, (crop, value) in enumerate(zip(part.boxes or (), entropy.tolist(), strict=True))
    ]
    beside = {name: create_method(name).predict(batch)[0].probs.tolist() for name in BESIDE}
    return {
        "image": {"width": part.size[0], "height": part.size[1]},
        "measure": "shannon"
        if own is None or not isinstance(method, Selector)
        else method.entropy.kind,
        "views": views,
        "prior": None if found.prior is None else found.prior.tolist(),
        "q": None if found.q is None else found.q.tolist(),
        "methods": {**beside, method.name: found.probs.tolist()},
    }


def _weights(method: Method, found: Prediction, views: int) -> list[float] | None:
    """Each view's share in the answer, for methods that take a mean of the views they keep."""
    if found.kept is None or found.entropy is None:
        return None
    kept = found.kept.cpu()
    entropy = found.entropy.float().cpu()[kept]
    soft = isinstance(method, Tilt)
    weights = torch.zeros(views)
    weights[kept] = F.soft_weights(entropy) if soft else torch.full_like(entropy, 1 / len(kept))
    return weights.tolist()
