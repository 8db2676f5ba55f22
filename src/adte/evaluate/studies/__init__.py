"""Studies: every table and figure of the paper, and our own, as functions of a lab."""

from adte.evaluate.studies import (  # noqa: F401
    analysis,
    benchmarks,
    figures,
    multilabel,
    own,
    pixels,
    shifts,
)
from adte.evaluate.studies.lab import PRESETS, Lab, Preset
from adte.evaluate.studies.study import Figure, Finding, Row, Series, Study, find_study, studies

__all__ = [
    "PRESETS",
    "Figure",
    "Finding",
    "Lab",
    "Preset",
    "Row",
    "Series",
    "Study",
    "find_study",
    "studies",
]
