"""The verbs by what they are for: where each is written, and a line that says what it does.

So `adte --help` and the Tab key need no verb's module, and none of what those import.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODULES", "VERBS"]


class Line(NamedTuple):
    module: str
    said: str


VERBS = {
    "Label images": {
        "predict": Line("predict", "Label images: files, folders, archives."),
        "learn": Line("predict", "Learn from unlabelled images, into a state to begin with."),
        "calibrate": Line("predict", "Make confidence mean what it says, with some labels."),
        "look": Line("predict", "See the labels on one page, and check some by eye."),
        "merge": Line("predict", "Make one state of several."),
        "undo": Line("predict", "Take back what `predict --sort-into` did."),
    },
    "Compare methods": {
        "demo": Line("demo", "All methods on real photographs; the place to start."),
        "compare": Line("evaluate", "Several methods on one stream."),
        "eval": Line("evaluate", "One method on labelled images or features."),
        "sweep": Line("evaluate", "One method over a grid of its options."),
        "extract": Line("evaluate", "Encode the views of a data set once, into a cache."),
        "replay": Line("evaluate", "One method on a cache, without the image tower."),
        "simulate": Line("evaluate", "The methods on a stream whose class prior is known."),
        "report": Line("report", "One HTML page, and tables, of kept results."),
        "paper": Line("paper", "The paper's tables and figures, ours beside the published."),
        "study": Line("paper", "Our own studies: what the paper leaves open."),
    },
    "Serve": {
        "serve": Line("serve", "Answer over HTTP; a page shows why."),
        "state": Line("serve", "What a service keeps: verify, back up, export, merge."),
    },
    "Look up and measure": {
        "methods": Line("lists", "The methods, and the options of each."),
        "models": Line("models_get", "The models; `models get` fetches the weights of one."),
        "datasets": Line("lists", "The data sets, and how to get each."),
        "data": Line("lists", "Check a data set on disk, or download one."),
        "bench": Line("bench", "Speed and memory on this machine."),
    },
}
MODULES = {name: line.module for verbs in VERBS.values() for name, line in verbs.items()}
