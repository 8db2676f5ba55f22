"""A metric: one function of a run, with its column."""

from adte.evaluate.running.metrics import metric


@metric("margin", column="margin", direction="up", caption="margin: truth − 1/L", kind="number")
def margin(run):
    return float(run.truth.mean() - 1 / run.classes)
