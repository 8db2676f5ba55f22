"""MEMO: one step on the whole image tower, for one image, until its views agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, StateError, unknown
from adte.methods.base import Method, Prediction, Sample
from adte.methods.image_tower import Descent, Tensors, Tower, answer, log_probs, prior_like, slopes
from adte.methods.measure import EntropyMethod, check_entries
from adte.methods.prompt_tuning import marginal, off_record
from adte.methods.registry import register
from adte.options import option

__all__ = ["MEMO"]

RATES = {"adamw": 1e-5, "sgd": 2.5e-4}


@register("memo")
@dataclass(kw_only=True, eq=False)
class MEMO(EntropyMethod):
    """The base view under weights tuned on the image's other views.

    1. loss = H(p̄), the entropy of the mean distribution of all views but the base view.
    2. One step on all weights of the image tower, batch norm with the statistics of `bn`.
    3. The base view is predicted under the new weights. Then the weights are as before.

    The authors' two optimisers are SGD with 2.5e-4 for ResNet-50 and AdamW with 1e-5 and decay
    0.01 for transformers and the large ResNeXts. AdamW is the default, for the towers that this
    library is about are of the second kind, and because its first step does not depend on the
    size of the gradient, so that one rate suits every tower and every measure of uncertainty.

    The authors restore the weights before each image, but never their optimiser, so AdamW's
    moments leak from image to image. Here it is reset too; `leak=True` does as they did.

    >>> MEMO().params["optimiser"], MEMO().stateful, MEMO(leak=True).stateful
    ('adamw', False, True)
    """

    reference = (
        "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022"
    )
    needs = frozenset({"pixels", "image tower"})

    parameters: Literal["all", "norm"] = option(
        "all", "what is tuned: all weights, or scale and shift of the normalisation layers"
    )
    optimiser: Literal["adamw", "sgd"] = option("adamw", "AdamW, or SGD without momentum")
    lr: float | None = option(None, "learning rate; none: 1e-5 for AdamW, 2.5e-4 for SGD")
    decay: float = option(0.01, "weight decay of AdamW")
    steps: int = option(1, "steps an image")
    bn_prior: float = option(16.0, "N of the batch-norm statistics (N·source + batch)/(N + 1)")
    leak: bool = option(False, "keep the optimiser's moments from image to image")

    _moments: Tensors = field(default_factory=dict, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (
            ("parameters", self.parameters, ("all", "norm")),
            ("optimiser", self.optimiser, ("adamw", "sgd")),
        ):
            if value not in known:
                raise unknown(name, value, known)
        for name in ("lr", "decay", "steps", "bn_prior"):
            if not (getattr(self, name) is None or getattr(self, name) >= 0):
                raise InputError(f"{name}={getattr(self, name)} of {self.name!r} is negative")

    @property
    def stateful(self) -> bool:
        return self.leak or self.uses_prior

    @property
    def descent(self) -> Descent:
        lr = RATES[self.optimiser] if self.lr is None else self.lr
        return Descent("sgd", lr) if self.optimiser == "sgd" else Descent("adam", lr, 0, self.decay)

    def loss(self, logits: Tensor) -> Tensor:
        """The measure of the mean distribution.  (V, L) → ()"""
        prior = prior_like(self, logits)
        return self.measure(marginal(log_probs(self, logits, prior, "before per-view")), prior)

    @off_record
    def predict(self, sample: Sample) -> Prediction:
        tower = Tower(sample, self.bn_prior)
        x, _, _ = self._tune(tower)
        z = tower.logits(tower.pixels[:1], x)[0]
        prior = prior_like(self, z)
        log_p = log_probs(self, sample.logits.to(z), prior, "before")
        entropy = self.measure(log_p, prior)  # of the views as they came
        ranked = F.rank_views(entropy)
        kept = ranked[ranked > 0] if len(ranked) > 1 else ranked
        return answer(self, z, prior, entropy, kept)

    def _tune(self, tower: Tower) -> tuple[Tensors, Tensors, int]:
        """The weights after the image's steps, and the optimiser's moments and steps."""
        names = list(tower.source)
        if self.parameters == "norm":
            names = [n for layer in tower.norms() for n in layer]
        x, views = tower.start(names), tower.pixels[min(1, len(tower.pixels) - 1) :]
        moments, t = self._moments, self._steps
        for n, m in moments.items():
            if m.shape != x.get(n.partition(".")[2], torch.tensor(torch.nan)).shape:
                raise InputError(
                    f"method {self.name!r} has moments {n!r} of {tuple(m.shape)}, which do not go "
                    "with this model; reset it or use another copy"
                )
        for _ in range(self.steps):
            slope = slopes(x, lambda x: self.loss(tower.logits(views, x)))
            fresh = self.descent.start({n: x[n] for n in slope})
            moments = fresh | {n: m.to(tower.pixels.device) for n, m in moments.items()}
            t += 1
            x, moments = self.descent.step(x, slope, moments, t)
        return x, moments, t

    # ------------------------------------------------------------------ state

    @off_record
    def learn(self, sample: Sample) -> None:
        if self.leak:
            _, self._moments, self._steps = self._tune(Tower(sample, self.bn_prior))
        super().learn(sample)

    def reset(self) -> None:
        super().reset()
        self._moments, self._steps = {}, 0

    def state_dict(self) -> Tensors:
        own = {n: m.clone() for n, m in self._moments.items()}
        if self.leak and self._steps:
            own["steps"] = torch.tensor(self._steps)
        return own | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        prior = {k: v for k, v in state.items() if k.startswith("prior.")}
        own = {k: v for k, v in state.items() if k not in prior}
        if not state:
            return self.reset()
        if bool(prior) != self.uses_prior or bool(own) != self.leak:
            odd = next(iter(prior if bool(prior) != self.uses_prior else own), "steps")
            raise StateError(
                f"state of {self.name!r} does not fit: entry {odd!r} is missing or unexpected; "
                "load it with the options of its saving"
            )
        if own:
            first = {k.partition(".")[2]: v for k, v in own.items() if k.startswith("first.")}
            like = self.descent.start(first) | {"steps": torch.tensor(0)}
            check_entries(self.name, own, like)
        super().load_state_dict(prior)
        self._moments = {k: v.clone() for k, v in own.items() if k != "steps"}
        self._steps = int(own.get("steps", 0))

    def merge(self, other: Method) -> None:
        super().merge(other)  # moments are of the last few images; those here stay
