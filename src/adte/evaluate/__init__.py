"""Evaluation: features, protocols, metrics, results and their reports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adte.evaluate.features.arrays import from_arrays, from_npz
    from adte.evaluate.running.figures import risk_coverage
    from adte.evaluate.running.protocol import PROTOCOLS, Run, predictions, run
    from adte.evaluate.running.tasks import Task

__all__ = [
    "PROTOCOLS", "Run", "Task", "from_arrays", "from_npz", "predictions", "risk_coverage", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: options can be shown without torch."""
    for home in ("features.arrays", "running.figures", "running.protocol", "running.tasks"):
        if name in __all__ and hasattr(module := import_module(f"adte.evaluate.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
