"""The verbs by their purpose: the module of each, and its line of help.

So `adte --help` and the Tab key need no verb's module, and none of what those import.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODULES", "VERBS"]


class Line(NamedTuple):
    module: str
    help: str


VERBS = {
    "Label images": {
        "predict": Line("predict", "Label images in files, folders and archives."),
        "learn": Line("predict", "Learn from unlabelled images in advance, into a state file."),
        "calibrate": Line("predict", "Calibrate confidences on a few labelled images."),
        "look": Line("predict", "Show the labels on one HTML page, and check some by eye."),
        "merge": Line("predict", "Merge several state files into one."),
        "undo": Line("predict", "Undo what `predict --sort-into` did."),
    },
    "Compare methods": {
        "demo": Line("demo", "Compare the methods on real photographs: start here."),
        "compare": Line("evaluate", "Compare several methods on one stream of images."),
        "eval": Line("evaluate", "Evaluate one method on labelled images or features."),
        "sweep": Line("evaluate", "Evaluate one method over a grid of its options."),
        "extract": Line("evaluate", "Encode the views of a data set once, into a cache."),
        "replay": Line("evaluate", "Evaluate one method on a cache, without encoding again."),
        "simulate": Line("evaluate", "Run the methods on simulated data with a known class prior."),
        "report": Line("evaluate", "Write an HTML page and tables from saved results."),
        "paper": Line("paper", "Reproduce the paper's tables and figures."),
        "study": Line("paper", "Run our own studies, on what the paper leaves open."),
    },
    "Serve": {
        "serve": Line("serve", "Serve a classifier over HTTP, with a page that explains it."),
        "state": Line("serve", "Show a state file, or manage the state of a service."),
    },
    "Look up and measure": {
        "methods": Line("lists", "List the methods, or the options of one."),
        "models": Line("lists", "List the models, or download the weights of one."),
        "datasets": Line("lists", "List the data sets, or show how to get one."),
        "data": Line("lists", "Check a data set on disk, or download one."),
        "bench": Line("bench", "Measure speed and memory on this machine."),
    },
}
MODULES = {name: line.module for verbs in VERBS.values() for name, line in verbs.items()}
