"""adte: vision-language classifiers that get better while they are used."""

from importlib import import_module
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
    from adte import data as data
    from adte import evaluate as evaluate
    from adte import testing as testing
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


_ROOMS = ("data", "evaluate", "testing")


def __getattr__(name: str) -> Any:
    """What few need is imported when it is asked for."""
    if name == "Client":
        from adte.serve.client import Client

        return Client
    if name == "compare":
        from adte.evaluate.compare import compare

        return compare
    if name in _ROOMS:
        return import_module(f"adte.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
