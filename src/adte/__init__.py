"""adte: vision-language classifiers that get better while they are used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adte import _start  # noqa: F401  # before torch
from adte._version import __version__ as __version__

if TYPE_CHECKING:
    from adte import data as data
    from adte import evaluate as evaluate
    from adte import testing as testing
    from adte.classifier import Classifier
    from adte.core import functional as functional
    from adte.core.batch import Batch, Context, Sample
    from adte.core.errors import AdteError, InputError, MissingExtra, StateError
    from adte.core.prediction import Prediction, Predictions
    from adte.evaluate.compare import compare
    from adte.evaluate.simulate import SimulatedStream
    from adte.images import Preprocess, Views
    from adte.images.decode import load_image
    from adte.methods import Method, create_method, list_methods
    from adte.methods.prior import PriorOptions, fixed_point
    from adte.models import Model, list_models, load_model, wrap
    from adte.pipeline import Pipeline
    from adte.serve.client import Client

__all__ = [
    "AdteError",
    "Batch",
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
    "core.batch": ("Batch", "Context", "Sample"),
    "classifier": ("Classifier",),
    "core.errors": ("AdteError", "InputError", "MissingExtra", "StateError"),
    "evaluate.compare": ("compare",),
    "images": ("Preprocess", "Views", "load_image"),
    "methods": ("Method", "create_method", "list_methods"),
    "models": ("Model", "list_models", "load_model", "wrap"),
    "pipeline": ("Pipeline",),
    "core.prediction": ("Prediction", "Predictions"),
    "methods.prior": ("PriorOptions", "fixed_point"),
    "serve.client": ("Client",),
    "evaluate.simulate": ("SimulatedStream",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("data", "evaluate", "functional", "methods", "models", "testing")


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: torch takes seconds, and a client of the service, or
    `adte --help`, does without it.
    """
    if name in _HOME:
        found = globals()[name] = getattr(import_module(f"adte.{_HOME[name]}"), name)
        return found
    if name == "functional":
        return import_module("adte.core.functional")
    if not name.startswith("_"):
        try:
            return import_module(f"adte.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"adte.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
