"""Methods: what turns the views of an image into a prediction. Importing registers them."""

# ruff: noqa: I001  # registered in this order
from adte.methods import zero_shot, tilt, selector, adte, tda, bca, frolic, mta  # noqa: F401
from adte.methods import tpt, dynaprompt, mltta, bn, tent, memo, deyo, tps, dpe  # noqa: F401
from adte.methods import onzeta, dmn, ecalp  # noqa: F401
from adte.core.batch import Batch, Sample
from adte.core.prediction import Prediction, Predictions
from adte.methods.base import Method
from adte.methods.tracking import PriorMethod
from adte.methods.registry import MethodInfo, create_method, list_methods, method_info
from adte.methods.registry import preset, register

__all__ = [
    "Batch",
    "Method",
    "MethodInfo",
    "Prediction",
    "Predictions",
    "PriorMethod",
    "Sample",
    "create_method",
    "list_methods",
    "method_info",
    "preset",
    "register",
]
