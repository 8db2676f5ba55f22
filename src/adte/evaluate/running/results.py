"""Results: what one run says and under which conditions, and a folder that keeps them."""

from __future__ import annotations

import json
import os
import platform
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adte._version import __version__
from adte.core.errors import InputError, StateError
from adte.evaluate.running.metrics import Metric, list_metrics
from adte.evaluate.running.protocol import Run
from adte.evaluate.stored import read_json, write_json
from adte.files import make_folder
from adte.files.states import load_state, save_state
from adte.files.whole import check_readable

__all__ = ["FORMAT", "Conditions", "Record", "Results", "summarise"]

FORMAT = 4
LONGEST = 230  # bytes of a run's name that leave room for its digest and suffix
READABLE = 100  # bytes that are kept of a longer one
KEPT: dict[str, type] = {  # what is kept of every image, and how
    "labels": np.int32,
    "predicted": np.int32,
    "rank": np.int32,
    "confidence": np.float32,
    "truth": np.float32,
    "entropy": np.float32,
}
ABOUT = ("ids", "domains", "groups", "places")


def summarise(run: Run) -> dict[str, Any]:
    """A run's figures, one for each metric that applies; shares are fractions."""
    out: dict[str, Any] = {}
    for m in list_metrics():
        try:
            value = _checked(m, m.function(run))
        except Exception as error:  # a stranger's metric must not cost a finished run
            warnings.warn(
                f"the metric {m.name!r} cannot be computed for {run.method!r} and is left out: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            continue
        if value is not None:
            out[m.name] = value
    return out


def _checked(m: Metric, value: Any) -> Any:
    """A figure as JSON has it, if it is of the metric's kind."""
    value = _plain(value)
    inner = list(value.values()) if isinstance(value, dict) else value
    wanted = {"parts": dict, "curve": list, "interval": list}.get(m.kind, (int, float))
    numbers = inner if isinstance(inner, list) else [inner]
    good = isinstance(value, wanted)
    good = good and all(isinstance(x, (int, float)) and isfinite(x) for x in numbers)
    if value is not None and not (good and (m.kind != "interval" or len(numbers) == 2)):
        raise TypeError(f"{value!r} is no value of the kind {m.kind!r}")
    return value


def _plain(value: Any) -> Any:
    """As JSON has it: NumPy's and torch's numbers and arrays as Python's own."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _versions() -> dict[str, str]:
    return {
        "adte": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Everything that decides the figures, so that a result can be made again.

    Attributes:
        protocol, method, options: what ran; stateful: whether it learns from the stream.
        model, fingerprint: the tower and its weights; dtype, device: how and where it ran.
        kernel, runtime: what resized the crops, and what computed the tower.
        prompts, views, preprocess, data: as each of them describes itself.
        own_prompt: the template that a method starts from by itself, where the prompts are others.
        order, order_seed: how the stream was ordered, and which shuffle of it this was.
        view_seed: seed of the crops.
        part: which part of the set, in words; None for all of it.
        images, classes: how many; skipped: id and reason of those that could not be read.
        stream: a digest of names and labels of the images, classes and scale, whatever the order.
        content: digests of a few images, see `Stream.content`; none if nobody looked at them.
        source: a digest of the module of a method that is not ours.
        versions: of adte, torch and python.
    """

    protocol: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    model: str
    fingerprint: str = ""
    dtype: str = ""
    device: str = ""
    kernel: str = ""
    runtime: str = ""
    prompts: dict[str, Any] = field(default_factory=dict)
    own_prompt: str = ""
    views: dict[str, Any] = field(default_factory=dict)
    view_seed: int = 0
    preprocess: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    order: str = ""
    order_seed: int = 0
    part: str | None = None
    images: int
    classes: int
    stateful: bool = True
    skipped: list[dict[str, Any]] = field(default_factory=list)
    stream: str = ""
    content: list[str] = field(default_factory=list)
    source: str = ""
    versions: dict[str, str] = field(default_factory=_versions)


@dataclass(frozen=True)
class Record:
    """The result of one run: a title, its figures by metric, and the conditions they hold under.

    `key` is the run's name in a results folder, `path` its file there, where it is kept.
    """

    title: str
    metrics: dict[str, Any]
    conditions: Conditions
    key: str = ""
    path: Path | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "metrics": self.metrics,
            "protocol": asdict(self.conditions),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], path: Path | None = None) -> Record:
        """The record of a file, whose checksum fits."""
        about = {f.name: facts["protocol"][f.name] for f in fields(Conditions)}
        return cls(facts["title"], facts["metrics"], Conditions(**about), facts["key"], path)


class Results:
    """A folder of runs: `<key>.json` with figures and protocol, `<key>.safetensors` with the
    prediction for every image. The key is a digest of all that decides the run, so a second call
    finds it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = make_folder(folder)

    @staticmethod
    def key(asked: dict[str, Any]) -> str:
        text = json.dumps(asked, sort_keys=True, default=str)
        name = "".join(c if c.isalnum() else "-" for c in str(asked.get("title", "run")))
        if len(data := name.encode()) > LONGEST:
            name = data[:READABLE].decode(errors="ignore")
        return f"{name}-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    def get(self, key: str) -> Record | None:
        """A finished run, or None. One whose predictions are gone counts as not run."""
        path = self.folder / f"{key}.json"
        return self._read(path) if _is_whole(path) else None

    def put(self, key: str, run: Run, record: Record) -> Record:
        """Keep a run; returns the record as it will be read.

        The JSON is written last: where it is, all of the run is.
        """
        tensors = {
            name: torch.from_numpy(getattr(run, name).astype(kind)) for name, kind in KEPT.items()
        }
        about = json.dumps({name: getattr(run, name) for name in ABOUT}, separators=(",", ":"))
        packed = bytearray(zlib.compress(about.encode(), 9))  # ids are many and alike
        tensors["about"] = torch.frombuffer(packed, dtype=torch.uint8)
        save_state(self.folder / f"{key}.safetensors", tensors, {"key": key})
        path = self.folder / f"{key}.json"
        write_json(path, {"format": FORMAT, **replace(record, key=key).to_json()})
        return self._read(path)

    def run(self, record: Record) -> Run:
        """The run behind a record, image by image."""
        path = self.folder / f"{record.key}.safetensors"
        check_readable(path)
        try:
            tensors, _ = load_state(path)
            arrays: dict[str, Any] = {
                name: tensors[name].numpy().astype(np.float64 if kind is np.float32 else np.int64)
                for name, kind in KEPT.items()
            }
            about = json.loads(zlib.decompress(tensors["about"].numpy().tobytes()))
            arrays |= {name: about[name] for name in ABOUT}
        except (InputError, StateError, KeyError, ValueError, zlib.error) as error:
            raise StateError(
                f"the predictions {str(path)!r} of a run are missing or damaged ({error}); delete "
                f"{record.key + '.json'!r} beside them and run again"
            ) from error
        c, figures = record.conditions, record.metrics
        return Run(
            method=c.method,
            protocol=c.protocol,
            options=c.options,
            seconds=figures["seconds"] * figures["images"],
            tcr=np.array(figures["tcr"]) if figures.get("tcr") is not None else None,
            classes=c.classes,
            peak_memory=figures.get("peak_memory"),
            **arrays,
        )

    def __iter__(self) -> Iterator[Record]:
        return (self._read(p) for p in sorted(self.folder.glob("*.json")) if _is_whole(p))

    def _read(self, path: Path) -> Record:
        mend = "use another results folder, or delete it and run again"
        facts = read_json(path, (FORMAT,), mend)
        if facts.get("key") != path.stem:
            raise StateError(f"result {str(path)!r} was written under another name; {mend}")
        try:
            return Record.from_json(facts, path)
        except (KeyError, TypeError) as error:  # one without a checksum
            raise StateError(f"result {str(path)!r} is damaged ({error}); {mend}") from error


def _is_whole(path: Path) -> bool:
    """Whether a JSON is that of a run; other files may lie beside them."""
    return path.exists() and path.with_suffix(".safetensors").exists()
