"""Evaluation: protocols, metrics, studies and their reports."""

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
