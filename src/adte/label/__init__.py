"""Labelling images into files, resumably: what `adte predict` and its kin do, from Python."""

from adte.label.back import Undone, undo
from adte.label.calibrating import Calibrating
from adte.label.job import Job
from adte.label.looking import Look, Looked
from adte.label.merging import merge_states
from adte.label.report import Labelled, Listener, Report
from adte.label.saved import Wanted, state_facts

__all__ = [
    "Calibrating",
    "Job",
    "Labelled",
    "Listener",
    "Look",
    "Looked",
    "Report",
    "Undone",
    "Wanted",
    "merge_states",
    "state_facts",
    "undo",
]
