"""adte: vision-language classifiers that get better while they are used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adte import _start  # noqa: F401  # before torch
from adte._version import __version__ as __version__

if TYPE_CHECKING:
    from adte import data as data
    from adte import evaluate as evaluate
    from adte import functional as functional
    from adte import testing as testing
    from adte.batch import Batch, Context, Sample
    from adte.classifier import Classifier
    from adte.errors import AdteError, InputError, MissingExtra, StateError
    from adte.evaluate.compare import compare
    from adte.images import load_image
    from adte.methods import Method, create_method, list_methods
    from adte.models import Model, list_models, load_model, wrap
    from adte.pipeline import Pipeline
    from adte.prediction import Prediction, Predictions
    from adte.prior import ClassPrior, PriorOptions, fixed_point
    from adte.serve.client import Client
    from adte.simulate import SimulatedStream
    from adte.views import Preprocess, Views

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

_HOMES = {
    "batch": ("Batch", "Context", "Sample"),
    "classifier": ("Classifier",),
    "errors": ("AdteError", "InputError", "MissingExtra", "StateError"),
    "evaluate.compare": ("compare",),
    "images": ("load_image",),
    "methods": ("Method", "create_method", "list_methods"),
    "models": ("Model", "list_models", "load_model", "wrap"),
    "pipeline": ("Pipeline",),
    "prediction": ("Prediction", "Predictions"),
    "prior": ("ClassPrior", "PriorOptions", "fixed_point"),
    "serve.client": ("Client",),
    "simulate": ("SimulatedStream",),
    "views": ("Preprocess", "Views"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("data", "evaluate", "functional", "testing")


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: torch takes seconds, and a client of the service, or
    `adte --help`, does without it.
    """
    if name in _ROOMS:
        return import_module(f"adte.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"adte.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
