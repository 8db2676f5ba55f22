"""The class prior: which classes a model favours, estimated from unlabelled predictions.

`PriorOptions` says how, and `rule_of` gives the estimate as functions of a declared state, which a
method keeps. A `Belief` is what a method knows of the classes.
"""

from adte.methods.prior.belief import Belief, Shares, shares
from adte.methods.prior.options import PriorOptions
from adte.methods.prior.rules import FixedPoint, Reading, Rule, clipped, fixed_point, rule_of

__all__ = [
    "Belief", "FixedPoint", "PriorOptions", "Reading", "Rule", "Shares", "clipped", "fixed_point",
    "rule_of", "shares",
]  # fmt: skip
