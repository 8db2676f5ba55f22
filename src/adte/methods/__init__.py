"""Methods: what turns the views of an image into a prediction. Importing registers them."""

# ruff: noqa: I001  # registered in this order
from adte.methods import zero_shot, average, se, te, zero, adte  # noqa: F401
from adte.methods import tda, boostadapter, bca, frolic, mta  # noqa: F401
from adte.methods import tpt, difftpt, dynaprompt, mltta  # noqa: F401
from adte.methods import bn, tent, memo, deyo  # noqa: F401
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
