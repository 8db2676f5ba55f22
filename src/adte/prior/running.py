"""The class prior with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from torch import Tensor

from adte import state as declared
from adte.errors import InputError, StateError, brief
from adte.options import at_least
from adte.prior.fixed import FixedPoint
from adte.prior.options import PriorOptions
from adte.prior.reading import Shares
from adte.state import State

__all__ = ["ClassPrior"]


class ClassPrior:
    """A running estimate of the model's class prior, for use by itself.

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

    @classmethod
    def of(cls, options: PriorOptions, state: State) -> ClassPrior:
        """Around a state that somebody else holds."""
        new = object.__new__(cls)
        first = next(v for k, v in state.items() if k != "seen")
        new.num_classes, new.options, new.state = len(first), options, state
        return new

    def reset(self) -> None:
        """Forget everything."""
        sizes = {"L": self.num_classes}
        self.state = declared.fresh("class prior", self.options.entries(), sizes)

    @property
    def seen(self) -> int:
        return int(self.state["seen"])

    def observe(self, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction, log-probabilities (L,). True if the bank kept it.

        It counts for the class it finds most probable, or for `label` where a study knows better.
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
        if not -torch.inf < float(log_p.max()) < 1e-2:
            raise InputError(
                f"a prediction up to {float(log_p.max()):.3g} reached the class prior, and "
                "log-probabilities end at 0; pass logits.log_softmax(-1)"
            )
        if label is not None and label not in range(self.num_classes):
            raise InputError(f"label {label!r} is none of {self.num_classes} classes, from 0 on")
        return self.options.observe(self.state, log_p.double().cpu(), label)

    @property
    def matrix(self) -> Tensor:
        """A (L, L), float64: column l' is the mean distribution of the items of class l'."""
        rule = self.options.rule
        if not isinstance(rule, FixedPoint):
            raise InputError(
                f"the {self.options.estimator} keeps no matrix; choose estimator='fixed-point'"
            )
        return rule.operator(self.state)(torch.eye(self.num_classes).double()).T

    @property
    def prior(self) -> Tensor:
        """p̃ (L,), float64, sums to one; uniform before anything was seen."""
        return self.log_prior.exp()

    @property
    def log_prior(self) -> Tensor:
        """log p̃ (L,), float64, finite."""
        return self.options.log_prior(self.state)

    @property
    def shares(self) -> Shares | None:
        """The share of every class in the stream, with an interval, where the estimate has it."""
        return self.options.shares(self.state)

    @property
    def bias(self) -> Tensor:
        """The paper's bias, −log p̃: large for the classes that the model neglects."""
        return -self.log_prior

    def state_dict(self) -> State:
        entries = self.options.entries()
        return {k: v.clone() for k, v in self.state.items() if entries[k].reduce != "derived"}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state. Checks everything first: on an error nothing has changed."""
        declared.check("class prior", self.options.entries(), state, {"L": self.num_classes})
        new = {k: v.clone() for k, v in state.items()}
        self.options.refresh(new)
        self.state = new

    def merge(self, other: ClassPrior) -> None:
        """Take in another prior of the same options, as if its stream had followed this one's.

        Exact for the marginal, and for the items of `all`, `fifo` and `gap-larger`. For `gap`,
        which forgets what it overwrote, the items of largest gap stay. For `reservoir` it is a
        uniform sample of both streams; give them seeds of their own, or they draw the same numbers.
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
        new = declared.merge("class prior", self.options.entries(), self.state, other.state)
        self.options.refresh(new)
        self.state = new
