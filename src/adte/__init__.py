"""adte: vision-language classifiers that get better while they are used."""

from typing import TYPE_CHECKING, Any

from adte import _start, functional  # noqa: F401  # `_start` before torch
from adte._version import __version__ as __version__
from adte.batch import Batch, Context, Sample
from adte.classifier import Classifier
from adte.errors import AdteError, InputError, MissingExtra, StateError
from adte.images import load_image
from adte.methods import Method, create_method, list_methods
from adte.models import Model, list_models, load_model, wrap
from adte.pipeline import Pipeline
from adte.prediction import Prediction, Predictions
from adte.prior import ClassPrior, PriorOptions, fixed_point
from adte.simulate import SimulatedStream
from adte.views import Preprocess, Views

if TYPE_CHECKING:
    from adte.evaluate.compare import compare
    from adte.serve.client import Client


__all__ = [
    "AdteError",
    "Batch",
    "ClassPrior",
    "Classifier",
    "Client",
    "Context",
    "InputError",
    "Method",
    "MissingExtra",
    "Model",
    "Pipeline",
    "Prediction",
    "Predictions",
    "Preprocess",
    "PriorOptions",
    "Sample",
    "SimulatedStream",
    "StateError",
    "Views",
    "compare",
    "create_method",
    "fixed_point",
    "functional",
    "list_methods",
    "list_models",
    "load_image",
    "load_model",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """What few need is imported when it is asked for."""
    if name == "Client":
        from adte.serve.client import Client

        return Client
    if name == "compare":
        from adte.evaluate.compare import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
