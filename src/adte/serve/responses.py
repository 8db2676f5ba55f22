"""The answers about a stream and its predictions, as JSON has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adte.core.prediction import Prediction
from adte.serve.jobs import Predict
from adte.serve.store import Row
from adte.serve.streams import Stream

__all__ = ["history_of", "predictions_of", "repeated", "state_of"]


def predictions_of(
    job: Predict, predictions: Sequence[Prediction], explained: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each image of a request."""
    return [
        {
            "label": p.label,
            "index": p.index,
            "confidence": p.confidence,
            "best": [list(pair) for pair in p.top(job.top)],
            "probs": p.probs.tolist() if job.probs else None,
            "explain": explained[i] if explained else None,
        }
        for i, p in enumerate(predictions)
    ]


def repeated(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that came again; explanations are not kept."""
    if "predictions" not in answer:
        return {**answer, "repeated": True}
    rows = [{**row, "explain": None} for row in answer["predictions"]]
    return {**answer, "predictions": rows, "repeated": True}


def state_of(stream: Stream, history: Sequence[Row]) -> dict[str, Any]:
    """The state of a stream, and its last predictions summed up."""
    prior, q = stream.beliefs()
    names = stream.clf.classes
    counts = [0] * len(names)
    for row in history:
        counts[row.predicted] += 1
    # Of classes with one name, any was meant.
    right = [names[row.predicted] == names[row.truth] for row in history if row.truth is not None]
    return {
        "id": stream.id,
        "method": stream.settings.method,
        "seen": stream.clf.seen,
        "seq": stream.seq,
        "frozen": stream.clf.frozen,
        "classes": names,
        "prior": prior,
        "q": q,
        "counts": counts,
        "drift": stream.drift,
        "labelled": len(right),
        "accuracy": sum(right) / len(right) if right else None,
        "bytes": stream.bytes,
    }


def history_of(stream: Stream, history: Sequence[Row]) -> dict[str, Any]:
    """The last predictions that counted."""
    names = stream.clf.classes
    rows = [
        {"seq": row.seq, "time": row.time, "index": row.predicted, "label": names[row.predicted],
         "confidence": row.confidence, "learned": bool(row.learned), "drift": row.drift,
         "truth": row.truth}
        for row in history
    ]  # fmt: skip
    return {"id": stream.id, "rows": rows}
