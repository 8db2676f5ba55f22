"""Models: `load_model(name)`, `list_models(pattern)`, `wrap(model)` and the contract."""

from __future__ import annotations

# ruff: noqa: I001  # models register themselves, in this order
from adte.models.base import FixedClasses, Model
from adte.models.registry import register_model, register_models
from adte.models import huggingface, lite, timm, tiny  # noqa: F401
from adte.models.loading import list_models, load_model
from adte.models.wrap import check_model, wrap
from adte.models.fast import accelerate

__all__ = [
    "FixedClasses",
    "Model",
    "accelerate",
    "check_model",
    "list_models",
    "load_model",
    "register_model",
    "register_models",
    "wrap",
]
