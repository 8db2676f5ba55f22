"""The class prior: which classes a model favours, estimated from unlabelled predictions.

`PriorOptions` says how, `rule_of` gives the estimate as functions of a declared state, and
`ClassPrior` is both with a state of its own. Methods hold the options, and keep the state.
"""

from adte.methods.prior.options import PriorOptions
from adte.methods.prior.reading import Belief, Reading, Shares, shares
from adte.methods.prior.rules import FixedPoint, Rule, clipped, fixed_point, rule_of
from adte.methods.prior.running import ClassPrior

__all__ = [
    "Belief", "ClassPrior", "FixedPoint", "PriorOptions", "Reading", "Rule", "Shares", "clipped",
    "fixed_point", "rule_of", "shares",
]  # fmt: skip
