"""Labelling images into files, resumably: what `adte predict` and its kin do, from Python."""

from adte.labelling.calibrating import Calibrating
from adte.labelling.job import Job
from adte.labelling.looking import Look, Looked
from adte.labelling.merging import merge_states
from adte.labelling.report import Labelled, Listener, Report
from adte.labelling.saved import Wanted, state_facts
from adte.labelling.sorting import Undone, undo

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
