"""Studies: every table and figure of the paper, and our own, as functions of a lab.

study        what a study is, and the decorator that registers one, here or in a plug-in
lab, rows    the streams that studies look at, their runs, and how rows are made of them
conduct      one after another or side by side; render: as tables and pages
comparisons  every system side by side: ood, cross-domain, ablation, entropies, cost
knobs        the options of ADTE: q's interval, scaling and direction, the bank, the adjustment
bias         the model's bias: who is favoured, how the estimate behaves, wrong labels
selection    the views that an entropy keeps: by q, by number, their reliability
shifts       corruptions, mixed streams, other backbones
replicas     copies that learn apart and merge
robustness   the default on streams of many kinds and in small label spaces
multilabel   two labels per image
pixels       what needs pixels: DeYO and image-only networks, on the worlds of `digits`
"""

from adte.paper import (  # noqa: F401
    bias,
    comparisons,
    knobs,
    multilabel,
    pixels,
    replicas,
    robustness,
    selection,
    shifts,
)
from adte.paper.lab import PRESETS, Lab, Preset
from adte.paper.study import (
    Figure,
    Finding,
    Row,
    Series,
    Study,
    find_study,
    studies,
    study,
)

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
    "study",
]
