"""Results: what one run says, and a folder that keeps them, one JSON a run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.errors import StateError
from adte.evaluate import metrics
from adte.evaluate.runner import Run
from adte.state import load_state, save_state, write_whole

__all__ = ["Results", "protocol_of", "summarise"]

FORMAT = 1


def summarise(
    run: Run,
    frequency: NDArray[np.float64] | None = None,
    domains: list[str] | None = None,
    groups: list[int] | None = None,
) -> dict[str, Any]:
    """A run's figures, accuracies as fractions."""
    correct = run.correct
    out: dict[str, Any] = {
        "accuracy": metrics.accuracy(correct),
        "top5": metrics.accuracy(run.rank < 5),
        "mean_per_class": metrics.mean_per_class(correct, run.labels),
        "ece": metrics.ece(run.confidence, correct),
        "nll": metrics.nll(run.truth),
        "confidence": float(run.confidence.mean()),
        "first_tenth": metrics.accuracy(correct[: max(1, len(correct) // 10)]),
        "images": len(correct),
        "images_per_s": run.images_per_s,
    }
    if frequency is not None:
        part = metrics.thirds(frequency)[run.labels]
        for i, name in enumerate(("head", "middle", "tail")):
            if (part == i).any():
                out[name] = metrics.accuracy(correct[part == i])
    for name, keys in (("by_domain", domains), ("by_group", groups)):
        if keys is not None and len(set(keys)) > 1:
            array = np.array(keys)
            out[name] = {
                str(k): metrics.accuracy(correct[array == k]) for k in sorted(set(keys), key=str)
            }
            out[f"worst_{name.removeprefix('by_')}"] = min(out[name].values())
    return out


def protocol_of(run: Run, facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Everything that decides the figures, so that a result can be made again."""
    kept = ("model", "fingerprint", "prompts", "views", "preprocess", "data", "stream")
    return {
        "protocol": run.protocol,
        "method": run.method,
        "options": run.options,
        **{k: facts[k] for k in kept if k in facts},
        "images": len(run.labels),
        "classes": len(facts["classes"]),
        **more,
        "versions": {
            "adte": version("adte"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


class Results:
    """A folder of runs: `<key>.json` with figures and protocol, `<key>.safetensors` with what was
    predicted for every image. The key is a digest of what was asked, so a run is found again.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def key(asked: dict[str, Any]) -> str:
        text = json.dumps(asked, sort_keys=True, default=str)
        name = "".join(c if c.isalnum() else "-" for c in str(asked.get("title", "run")))
        return f"{name}-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    def get(self, key: str) -> dict[str, Any] | None:
        """A finished run, or None."""
        path = self.folder / f"{key}.json"
        return self._read(path) if path.exists() else None

    def put(self, key: str, run: Run, result: dict[str, Any]) -> dict[str, Any]:
        """Keep a run. The JSON is written last: where it is, all of the run is."""
        tensors = {
            name: torch.from_numpy(getattr(run, name).astype(kind))
            for name, kind in (
                ("labels", np.int32),
                ("predicted", np.int32),
                ("rank", np.int32),
                ("confidence", np.float32),
                ("truth", np.float32),
            )
        }
        save_state(self.folder / f"{key}.safetensors", tensors, {"key": key})
        record = {"format": FORMAT, "key": key, **result}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        write_whole(self.folder / f"{key}.json", lambda n: Path(n).write_text(text, "utf-8"))
        return record

    def correct(self, key: str) -> NDArray[np.bool_]:
        """Right or wrong, for every image of a kept run."""
        tensors, _ = load_state(self.folder / f"{key}.safetensors")
        right: NDArray[np.bool_] = tensors["labels"].numpy() == tensors["predicted"].numpy()
        return right

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._read(p) for p in sorted(self.folder.glob("*.json")))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise StateError(
                f"result {str(path)!r} cannot be read ({error}); delete it and run again"
            ) from error
        if record.get("format") != FORMAT:
            raise StateError(
                f"result {str(path)!r} has format {record.get('format')}, this version reads "
                f"{FORMAT}; use another results folder, or delete it and run again"
            )
        return record
