"""Models: `load_model(name)`, `list_models(pattern)` and the contracts."""

from __future__ import annotations

from adte.models.base import ImageModel, Model
from adte.models.registry import list_models, load_model

__all__ = ["ImageModel", "Model", "list_models", "load_model"]
