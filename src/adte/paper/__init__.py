"""The paper's tables and figures, and our own studies, as functions of a lab.

published    the paper's own numbers
lab          the streams that studies look at, and their runs, each done once
study        a study, its finding, and the decorator that registers one, here or in a plug-in
tables       the shape that most studies share: a row for every rival, a column for every setting
sources      a person's data, encoded once for all studies
render       findings as tables and pages
comparisons, bias, selection, shifts  the paper's studies
ours         the default on streams of many kinds
"""

from adte.paper import bias, comparisons, ours, selection, shifts  # noqa: F401
from adte.paper.lab import PRESETS, Lab, Settings
from adte.paper.study import Finding, Plot, Row, Study, find_study, studies, study

__all__ = [
    "PRESETS",
    "Finding",
    "Lab",
    "Plot",
    "Row",
    "Settings",
    "Study",
    "find_study",
    "studies",
    "study",
]
