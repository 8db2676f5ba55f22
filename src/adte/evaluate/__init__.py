"""Evaluation: protocols, metrics, studies and their reports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adte.evaluate.features.arrays import from_arrays, from_npz
    from adte.evaluate.running.figures import risk_coverage
    from adte.evaluate.running.protocol import PROTOCOLS, Run, predictions, run
    from adte.evaluate.running.tasks import Task

__all__ = [
    "PROTOCOLS",
    "Run",
    "Task",
    "from_arrays",
    "from_npz",
    "predictions",
    "risk_coverage",
    "run",
]

_HOMES = {
    "features.arrays": ("from_arrays", "from_npz"),
    "running.figures": ("risk_coverage",),
    "running.protocol": ("PROTOCOLS", "Run", "predictions", "run"),
    "running.tasks": ("Task",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: options can be shown without torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"adte.evaluate.{_HOME[name]}"), name)
    return found
