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

from adte.errors import InputError, StateError
from adte.evaluate import metrics
from adte.evaluate.runner import Run
from adte.state import load_state, make_folder, save_state, write_whole

__all__ = ["Results", "protocol_of", "summarise"]

FORMAT = 2
KEPT: dict[str, type] = {  # what is kept of every image, and how
    "labels": np.int32,
    "predicted": np.int32,
    "rank": np.int32,
    "confidence": np.float32,
    "truth": np.float32,
    "entropy": np.float32,
}
PARTS = ("head", "middle", "tail")


def summarise(
    run: Run,
    frequency: NDArray[np.float64] | None = None,
    domains: list[str] | None = None,
    groups: list[int] | None = None,
    estimated: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """A run's figures, accuracies as fractions.

    Head, middle and tail are thirds of the classes by known `frequency`, and again by `estimated`
    frequency (what the method holds for the prior; else how often it predicted each class).
    """
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
        "seconds": run.seconds / max(1, len(correct)),
        "entropy": float(run.entropy.mean()),
        "tcr": None if run.tcr is None else run.tcr.tolist(),
    }
    if frequency is not None:
        part = metrics.thirds(frequency)[run.labels]
        for i, name in enumerate(PARTS):
            if (mine := part == i).any():
                out[name] = metrics.accuracy(correct[mine])
                out[f"{name}_confidence"] = float(run.confidence[mine].mean())
                out[f"{name}_entropy"] = float(run.entropy[mine].mean())
    classes = int(max(run.labels.max(initial=0), run.predicted.max(initial=0))) + 1
    counts = np.bincount(run.predicted, minlength=classes)
    part = metrics.thirds(counts if estimated is None else estimated)[run.labels]
    for i, name in enumerate(PARTS):
        if (part == i).any():
            out[f"{name}_estimated"] = metrics.accuracy(correct[part == i])
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
    kept = ("model", "fingerprint", "prompts", "views", "preprocess", "data", "part")
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
        self.folder = make_folder(folder)

    @staticmethod
    def key(asked: dict[str, Any]) -> str:
        text = json.dumps(asked, sort_keys=True, default=str)
        name = "".join(c if c.isalnum() else "-" for c in str(asked.get("title", "run")))
        return f"{name}-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    def get(self, key: str) -> dict[str, Any] | None:
        """A finished run, or None. One whose predictions are gone counts as not run."""
        path = self.folder / f"{key}.json"
        whole = path.exists() and path.with_suffix(".safetensors").exists()
        return self._read(path) if whole else None

    def put(self, key: str, run: Run, result: dict[str, Any]) -> dict[str, Any]:
        """Keep a run. The JSON is written last: where it is, all of the run is."""
        tensors = {
            name: torch.from_numpy(getattr(run, name).astype(kind)) for name, kind in KEPT.items()
        }
        save_state(self.folder / f"{key}.safetensors", tensors, {"key": key})
        record = {"format": FORMAT, "key": key, **result}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        write_whole(self.folder / f"{key}.json", lambda n: Path(n).write_text(text, "utf-8"))
        return record

    def run(self, record: dict[str, Any]) -> Run:
        """The run behind a record, image by image."""
        tensors = self._predictions(record["key"])
        protocol, figures = record["protocol"], record["metrics"]
        wide: dict[type, type] = {np.int32: np.int64, np.float32: np.float64}
        arrays: dict[str, Any] = {n: tensors[n].numpy().astype(wide[k]) for n, k in KEPT.items()}
        return Run(
            method=protocol["method"],
            protocol=protocol["protocol"],
            options=protocol["options"],
            seconds=figures["seconds"] * figures["images"],
            tcr=np.array(figures["tcr"]) if figures["tcr"] is not None else None,
            **arrays,
        )

    def _predictions(self, key: str) -> dict[str, torch.Tensor]:
        path = self.folder / f"{key}.safetensors"
        try:
            tensors, _ = load_state(path)
            if missing := [name for name in KEPT if name not in tensors]:
                raise StateError(f"it has no {missing[0]!r}")
        except (InputError, StateError) as error:
            raise StateError(
                f"the predictions {str(path)!r} of a run are missing or damaged ({error}); delete "
                f"{key + '.json'!r} beside them and run again"
            ) from error
        return tensors

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._read(p) for p in sorted(self.folder.glob("*.json")))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
            form = record.get("format")
        except (ValueError, AttributeError, OSError) as error:
            raise StateError(
                f"result {str(path)!r} cannot be read ({error}); delete it and run again"
            ) from error
        if form != FORMAT:
            writer = record.get("protocol", {}).get("versions", {}).get("adte", "unknown")
            raise StateError(
                f"result {str(path)!r} has format {form} (written by adte {writer}), this version "
                f"reads {FORMAT}; use another results folder, or delete it and run again"
            )
        return record
