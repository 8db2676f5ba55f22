"""Methods: what turns the views of an image into a prediction. Importing registers them."""

from adte.methods import adte, average, se, te, zero, zero_shot  # noqa: F401
from adte.methods.base import Method, Prediction, PriorMethod, Sample, ViewMethod
from adte.methods.registry import MethodInfo, create_method, list_methods, method_info

__all__ = [
    "Method",
    "MethodInfo",
    "Prediction",
    "PriorMethod",
    "Sample",
    "ViewMethod",
    "create_method",
    "list_methods",
    "method_info",
]
