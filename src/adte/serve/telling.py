"""What is told of a stream and of its predictions, as JSON has it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from adte.core.prediction import Prediction
from adte.serve.jobs import Predict
from adte.serve.streams import Stream

__all__ = [
    "as_kept", "read_kept", "read_making", "repeated", "sound", "tell_history", "tell_predictions",
    "tell_state",
]  # fmt: skip

CHANGING = ("frozen", "seen", "temperature", "seq", "damaged")  # of a stream's facts
Rows = Sequence[tuple[Any, ...]]  # of the history, as `Store.history` has them


def tell_predictions(
    job: Predict, found: Sequence[Prediction], explained: Sequence[dict[str, Any]]
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
        for i, p in enumerate(found)
    ]


def as_kept(answer: dict[str, Any]) -> str:
    """An answer as it is kept for a repeated request.

    Without the explanation; of a stream's facts those that change, since the others may be long.
    """
    if "predictions" in answer:
        return json.dumps(_unexplained(answer))
    return json.dumps({name: answer[name] for name in CHANGING})


def read_kept(data: bytes | str) -> dict[str, Any]:
    """An answer as it was kept; one that is damaged raises a ValueError."""
    try:
        found: dict[str, Any] = json.loads(data)
        numbers = [found["seen"], found["seq"], found.get("temperature", 1.0)]
        if "frozen" not in found:
            numbers.append(found["learned"])
            for row in found["predictions"]:
                numbers += [row["index"], row["confidence"], *(row["probs"] or ())]
                numbers += [x for _, x in row["best"]]
                if not isinstance(row["label"], str):
                    raise ValueError("a label is no text")
        if not all(map(math.isfinite, numbers)):
            raise ValueError("a number is not finite")
    except (TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return found


def read_making(data: bytes | str) -> tuple[str, str]:
    """The id of a stream that was made, and when; what is damaged raises a ValueError."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, list) or [type(x) for x in found] != [str, str]:
        raise ValueError("it is not two texts")
    return found[0], found[1]


def repeated(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that came again."""
    return {**_unexplained(answer), "repeated": True}


def _unexplained(answer: dict[str, Any]) -> dict[str, Any]:
    if "predictions" not in answer:
        return answer
    return {**answer, "predictions": [{**row, "explain": None} for row in answer["predictions"]]}


def sound(row: tuple[Any, ...], classes: int) -> bool:
    """Whether a row of the history can be told: no checksum guards it."""
    seq, _, time, index, confidence, _, drift, truth = row
    named = [index] if truth is None else [index, truth]
    numbers = [confidence] if drift is None else [confidence, drift]
    return (
        isinstance(seq, int)
        and isinstance(time, str)
        and all(isinstance(x, int) and 0 <= x < classes for x in named)
        and all(isinstance(x, float) and math.isfinite(x) for x in numbers)
    )


def _sound(history: Rows, names: Sequence[str]) -> Rows:
    return [row for row in history if sound(row, len(names))]


def tell_state(stream: Stream, history: Rows) -> dict[str, Any]:
    """What a stream has learned, and what it has said of late."""
    prior, q = stream.beliefs()
    names = stream.clf.classes
    counts = [0] * len(names)
    labelled = right = 0
    for row in _sound(history, names):
        counts[row[3]] += 1
        if row[7] is not None:
            labelled += 1
            right += names[row[3]] == names[row[7]]  # of classes with one name, any was meant
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
        "labelled": labelled,
        "accuracy": right / labelled if labelled else None,
        "bytes": stream.bytes,
    }


def tell_history(stream: Stream, history: Rows) -> dict[str, Any]:
    """The last predictions that counted."""
    names = stream.clf.classes
    rows = [
        {"seq": seq, "time": time, "index": index, "label": names[index],
         "confidence": confidence, "learned": bool(learned), "drift": drift, "truth": truth}
        for seq, _, time, index, confidence, learned, drift, truth in _sound(history, names)
    ]  # fmt: skip
    return {"id": stream.id, "rows": rows}
