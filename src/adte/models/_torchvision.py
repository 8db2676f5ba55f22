"""The torchvision-operator problem, handled once.

torchvision's compiled part does not load beside a torch of another build, such as the CPU build
from another index. That part is not needed here, but torchvision then still describes two of its
operators to torch and fails with "operator torchvision::nms does not exist". Declaring the two
before the import mends it; their kernels stay absent, and calling them is still an error.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from adte.core.errors import MissingExtra

__all__ = ["import_late", "import_torchvision"]

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision(extra: str = "clip") -> ModuleType:
    """torchvision, with its missing operators declared if need be. Safe to call again."""
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise MissingExtra("torchvision", extra, "this model") from error
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left behind
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", _SCHEMA)
    return importlib.import_module("torchvision")


def import_late(module: str, package: str, extra: str, purpose: str) -> Any:
    """An optional module, after torchvision, which many of them import by themselves."""
    with suppress(MissingExtra):  # not all of them need it
        import_torchvision(extra)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(package, extra, purpose) from error
