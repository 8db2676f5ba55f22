"""adte: vision-language classifiers that get better while they are used."""

from adte import functional
from adte.classifier import Classifier
from adte.errors import AdteError, InputError, MissingExtra, StateError
from adte.methods import Method, Prediction, Sample, create_method, list_methods
from adte.models import Model, list_models, load_model
from adte.prior import ClassPrior, PriorOptions, fixed_point
from adte.simulate import SimulatedStream
from adte.views import Preprocess, Views, load_image

__version__ = "0.1.0"

__all__ = [
    "AdteError",
    "ClassPrior",
    "Classifier",
    "InputError",
    "Method",
    "MissingExtra",
    "Model",
    "Prediction",
    "Preprocess",
    "PriorOptions",
    "Sample",
    "SimulatedStream",
    "StateError",
    "Views",
    "create_method",
    "fixed_point",
    "functional",
    "list_methods",
    "list_models",
    "load_image",
    "load_model",
]
