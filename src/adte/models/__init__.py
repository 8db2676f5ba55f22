"""Models: `load_model(name)` and the contract."""

from __future__ import annotations

from collections.abc import Callable

from adte.errors import unknown
from adte.models.base import Model

__all__ = ["Model", "list_models", "load_model"]


def _tiny() -> Model:
    from adte.models.tiny import load_tiny

    return load_tiny()


_MODELS: dict[str, Callable[[], Model]] = {"tiny": _tiny}


def load_model(name: str) -> Model:
    """A model by name. `tiny` is embedded in the package and needs no network."""
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    return _MODELS[name]().eval()


def list_models() -> list[str]:
    """The names that `load_model` takes."""
    return list(_MODELS)
