"""adte: vision-language classifiers that get better while they are used."""

from adte import functional
from adte.errors import AdteError, InputError, MissingExtra, StateError
from adte.methods import Method, Prediction, Sample, create_method, list_methods
from adte.prior import ClassPrior, PriorOptions, fixed_point
from adte.simulate import SimulatedStream

__version__ = "0.1.0"

__all__ = [
    "AdteError",
    "ClassPrior",
    "InputError",
    "Method",
    "MissingExtra",
    "Prediction",
    "PriorOptions",
    "Sample",
    "SimulatedStream",
    "StateError",
    "create_method",
    "fixed_point",
    "functional",
    "list_methods",
]
