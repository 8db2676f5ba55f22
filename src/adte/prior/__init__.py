"""The class prior: which classes a model favours, estimated from unlabelled predictions.

Three estimates, each in its room, as functions of a declared state (`rule`):

    marginal      the mean of all predictions
    joint         the model's bias told from the stream's frequencies (`adte.bias`)
    fixed         p̃ = A p̃, with A from a memory bank of predictions by pseudo-label

`PriorOptions` chooses one and holds what decides it; methods hold the options, and keep the state
as a part of their own. `ClassPrior` is both together, for use by itself.
"""

from adte.prior.fixed import fixed_point
from adte.prior.options import PriorOptions
from adte.prior.reading import Belief, Reading, Shares, shares
from adte.prior.rule import clipped
from adte.prior.running import ClassPrior

__all__ = ["Belief", "ClassPrior", "PriorOptions", "Reading", "Shares", "clipped", "fixed_point", "shares"]
