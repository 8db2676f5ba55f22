"""Evaluation: protocols, metrics, studies and their reports."""

from adte.evaluate.running.protocol import PROTOCOLS, Run, predictions, run

__all__ = ["PROTOCOLS", "Run", "predictions", "run"]
