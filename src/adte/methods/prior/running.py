"""The class prior with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from torch import Tensor

from adte.core import state as declared
from adte.core.errors import InputError, StateError, brief
from adte.core.options import at_least
from adte.core.state import State
from adte.methods.prior.options import PriorOptions
from adte.methods.prior.rules import FixedPoint, Rule, rule_of

__all__ = ["ClassPrior"]

ROUNDED = 0.1  # how far probabilities of half precision may be from summing to one


class ClassPrior:
    """A running estimate of a model's class prior: which classes its predictions favour.

    Methods hold such an estimate; this class is for using one by itself.

    Args:
        num_classes: number of classes L.
        options: how the prior is estimated; by default the mean of all predictions.

    >>> prior = ClassPrior(2, PriorOptions(estimator="fixed-point", smoothing=0, smoothing_total=0))
    >>> prior.observe(torch.tensor([0.9, 0.1]).log())
    True
    >>> prior.observe(torch.tensor([0.4, 0.6]).log())
    True
    >>> prior.prior
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """

    def __init__(self, num_classes: int, options: PriorOptions | None = None) -> None:
        if not isinstance(options, PriorOptions | None):
            raise InputError(f"{brief(options)} are no options of a prior; give PriorOptions(…)")
        self.num_classes = at_least("num_classes", num_classes, 1)
        self.options = options or PriorOptions()
        self.reset()

    @property
    def rule(self) -> Rule:
        """The estimate, as functions of the state."""
        return rule_of(self.options)

    @classmethod
    def of(cls, options: PriorOptions, state: State) -> ClassPrior:
        """A prior around a state that another object holds, such as a method's."""
        new = object.__new__(cls)
        first = next(v for k, v in state.items() if k != "seen")
        new.num_classes, new.options, new.state = len(first), options, state
        return new

    def reset(self) -> None:
        """Forget everything."""
        sizes = {"L": self.num_classes}
        self.state = declared.fresh("class prior", self.rule.entries(), sizes)

    @property
    def seen(self) -> int:
        """Number of predictions that were taken in."""
        return int(self.state["seen"])

    def observe(self, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction.

        Args:
            log_p: log-probabilities (L,), such as `logits.log_softmax(-1)`.
            label: class that the prediction counts for, where the estimator keeps predictions by
                class; by default its most probable one.

        Returns:
            Whether the prediction was kept; a bank may refuse it.

        Raises:
            InputError: if `log_p` are not log-probabilities of L classes.
        """
        try:
            log_p = torch.as_tensor(log_p).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{brief(log_p)} is no prediction; pass logits.log_softmax(-1)"
            ) from error
        if log_p.shape != (self.num_classes,):
            raise InputError(
                f"the prior is over {self.num_classes} classes, but a prediction "
                f"of shape {tuple(log_p.shape)} came; pass one row of log-probabilities"
            )
        if bool(log_p.isnan().any()):
            raise InputError(
                "a prediction with NaN reached the class prior; check the model's output"
            )
        if not abs(float(whole := log_p.double().exp().sum()) - 1) < ROUNDED:
            raise InputError(
                f"a prediction whose probabilities sum to {float(whole):.3g} reached the class "
                "prior; pass logits.log_softmax(-1)"
            )
        if label is not None and label not in range(self.num_classes):
            raise InputError(f"label {label!r} is none of {self.num_classes} classes, from 0 on")
        return self.rule.observe(self.state, log_p.double().cpu(), label)

    @property
    def matrix(self) -> Tensor:
        """The matrix A (L, L) of the fixed point, float64.

        Column l' is the mean distribution of the predictions kept for class l'. Other estimators
        have no matrix, and raise an `InputError`.
        """
        rule = self.rule
        if not isinstance(rule, FixedPoint):
            raise InputError(
                f"the {self.options.estimator} keeps no matrix; choose estimator='fixed-point'"
            )
        return rule.matrix(self.state)

    @property
    def prior(self) -> Tensor:
        """The estimated prior p̃ (L,), float64, which sums to one; uniform at the start."""
        return self.log_prior.exp()

    @property
    def log_prior(self) -> Tensor:
        """The log of the estimated prior (L,), float64, always finite."""
        return self.rule.log_prior(self.state)

    @property
    def bias(self) -> Tensor:
        """The bias as the paper defines it, −log p̃: large for classes that the model neglects."""
        return -self.log_prior

    def state_dict(self) -> State:
        """A copy of what was learned, as tensors by name, for `load_state_dict`."""
        entries = self.rule.entries()
        return {k: v.clone() for k, v in self.state.items() if entries[k].reduce != "derived"}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace what was learned by a `state_dict`.

        Everything is checked first: after an error nothing has changed.
        """
        declared.check("class prior", self.rule.entries(), state, {"L": self.num_classes})
        new = {k: v.clone() for k, v in state.items()}
        self.rule.refresh(new)
        self.state = new

    def merge(self, other: ClassPrior) -> None:
        """Add what another prior of the same options has learned, as if its stream had followed.

        The result is exact for the marginal, and for banks of kind `all`, `fifo` and `gap-larger`.
        A bank of kind `gap` forgets what it overwrote, so the predictions
        of largest gap are kept. With `reservoir` the result is a uniform sample of both streams, if
        they had different seeds.

        Raises:
            StateError: if the two differ in classes or options.
        """
        if not isinstance(other, ClassPrior):
            raise InputError(f"{brief(other)} is no ClassPrior; merge one")
        if other is self:
            raise StateError("cannot merge a prior into itself; give another one")
        if other.num_classes != self.num_classes:
            raise StateError(
                f"cannot merge a prior over {other.num_classes} classes into one over "
                f"{self.num_classes}; both must have the same classes"
            )
        for f in fields(PriorOptions):
            a, b = getattr(self.options, f.name), getattr(other.options, f.name)
            if a != b and f.name != "seed":
                raise StateError(
                    f"cannot merge priors with {f.name}={a!r} and {f.name}={b!r}; "
                    "give both the same options"
                )
        new = declared.merge("class prior", self.rule.entries(), self.state, other.state)
        self.rule.refresh(new)
        self.state = new
