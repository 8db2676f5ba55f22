"""Results: what one run says and under which conditions, and a folder that keeps them."""

from __future__ import annotations

import json
import os
import platform
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from adte._version import __version__
from adte.core.errors import InputError, StateError, brief
from adte.core.schema import Positive, Scalar, read, read_fields
from adte.data.streams import other_images
from adte.evaluate.running.metrics import Metric, list_metrics
from adte.evaluate.running.protocol import Protocol, Run
from adte.files import make_folder, write_whole
from adte.files.states import load_state, save_state
from adte.files.whole import check_readable

__all__ = ["FORMAT", "Conditions", "Record", "Results", "summarise"]

FORMAT = 3
DIGITS = 12  # of the digest at the end of a run's name
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
WIDE: dict[type, type] = {np.int32: np.int64, np.float32: np.float64}


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
    """What one run says: a title, its figures by metric, and the conditions they hold under.

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
        """Checked: what is missing or of the wrong kind is named in a ValueError."""
        found = read(_Record, facts)
        if path is not None and found["key"] != path.stem:
            raise ValueError(f"key is {brief(found['key'])}, not the file's name")
        for name in ("accuracy", "seconds", "images"):
            read(float, found["metrics"].get(name), f"metrics.{name}")
        for m in list_metrics():
            try:
                _checked(m, found["metrics"].get(m.name))
            except TypeError as error:
                raise ValueError(f"metrics.{m.name}: {error}") from error
        about = read_fields(Conditions, found["protocol"], "protocol", more=True, **READ)
        return cls(found["title"], found["metrics"], Conditions(**about), found["key"], path)


class _Named(TypedDict):
    name: str


class _Data(TypedDict, total=False):
    datasets: list[_Named]
    domain_counts: dict[str, Any]
    seed: Scalar


class _Prompts(TypedDict, total=False):
    templates: list[str] | None


class _Views(TypedDict, total=False):
    count: Positive | None


class _Skipped(TypedDict, total=False):
    id: str


class _Record(TypedDict):
    title: str
    metrics: dict[str, Any]
    protocol: dict[str, Any]
    key: str


# What tables and pages read of the conditions; whatever else a table holds is kept as it is.
READ: dict[str, Any] = {
    "protocol": Protocol, "prompts": _Prompts, "views": _Views, "data": _Data,
    "skipped": list[_Skipped], "images": Positive, "classes": Positive,
}  # fmt: skip


class Results:
    """A folder of runs: `<key>.json` with figures and protocol, `<key>.safetensors` with what was
    predicted for every image. The key is a digest of what was asked, so a run is found again; it
    is another one where there is a run on other images of the same names.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = make_folder(folder)

    @staticmethod
    def key(asked: dict[str, Any]) -> str:
        text = json.dumps(asked, sort_keys=True, default=str)
        name = "".join(c if c.isalnum() else "-" for c in str(asked.get("title", "run")))
        return f"{cut(name)}-{_digits(text)}"

    def get(self, key: str, content: Sequence[str] = ()) -> Record | None:
        """A finished run on images of this content, or None. One whose predictions are gone counts
        as not run.
        """
        path = self.folder / f"{self._own(key, content)}.json"
        whole = path.exists() and path.with_suffix(".safetensors").exists()
        return self._read(path) if whole else None

    def put(self, key: str, run: Run, record: Record) -> Record:
        """Keep a run; returns the record as it will be read.

        The JSON is written last: where it is, all of the run is.
        """
        key = self._own(key, record.conditions.content)
        tensors = {
            name: torch.from_numpy(getattr(run, name).astype(kind)) for name, kind in KEPT.items()
        }
        tensors["about"] = _packed([run.ids, run.domains, run.groups])
        save_state(self.folder / f"{key}.safetensors", tensors, {"key": key})
        facts = {"format": FORMAT, **replace(record, key=key).to_json()}
        text = json.dumps(facts, indent=1) + "\n"
        path = self.folder / f"{key}.json"
        write_whole(path, text)
        return Record.from_json(json.loads(text), path)

    def _own(self, key: str, content: Sequence[str]) -> str:
        """The key, or another one where it is taken by a run on other images of the same names."""
        path = self.folder / f"{key}.json"
        try:
            if content and other_images(self._read(path).conditions.content, content):
                return f"{key[:-DIGITS]}{_digits(key, *content)}"
        except (InputError, StateError):  # there is none, or it is damaged
            pass
        return key

    def run(self, record: Record) -> Run:
        """The run behind a record, image by image."""
        arrays, (ids, domains, groups) = self._predictions(record.key)
        about, figures = record.conditions, record.metrics
        return Run(
            method=about.method,
            protocol=about.protocol,
            options=about.options,
            seconds=figures["seconds"] * figures["images"],
            tcr=np.array(figures["tcr"]) if figures.get("tcr") is not None else None,
            classes=about.classes,
            ids=ids,
            domains=domains,
            groups=groups,
            peak_memory=figures.get("peak_memory"),
            **arrays,
        )

    def _predictions(self, key: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
        path = self.folder / f"{key}.safetensors"
        check_readable(path)
        try:
            tensors, _ = load_state(path)
            arrays: dict[str, Any] = {
                n: tensors[n].numpy().astype(WIDE[k]) for n, k in KEPT.items()
            }
            return arrays, tuple(_unpacked(tensors["about"]))
        except (InputError, StateError, KeyError, ValueError, zlib.error) as error:
            raise StateError(
                f"the predictions {str(path)!r} of a run are missing or damaged ({error}); delete "
                f"{key + '.json'!r} beside them and run again"
            ) from error

    def __iter__(self) -> Iterator[Record]:
        return (self._read(p) for p in sorted(self.folder.glob("*.json")) if not _foreign(p))

    def _read(self, path: Path) -> Record:
        check_readable(path)
        try:
            facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
            form = facts.get("format")
            if form == FORMAT:
                return Record.from_json(facts, path)
        except (ValueError, AttributeError, OSError, RecursionError) as error:
            raise StateError(
                f"result {str(path)!r} cannot be read ({error}); delete it and run again"
            ) from error
        protocol = facts.get("protocol")
        versions = protocol.get("versions") if isinstance(protocol, dict) else None
        writer = versions.get("adte", "unknown") if isinstance(versions, dict) else "unknown"
        raise StateError(
            f"result {str(path)!r} has format {form} (written by adte {writer}), this version "
            f"reads {FORMAT}; use another results folder, or delete it and run again"
        )


def _digits(*texts: str) -> str:
    return blake2b("\n".join(texts).encode(), digest_size=DIGITS // 2).hexdigest()


def _foreign(path: Path) -> bool:
    """Whether a JSON is none of a run: it has no format, and no predictions lie beside it."""
    if path.with_suffix(".safetensors").exists():
        return False
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError):
        return False
    return not isinstance(facts, dict) or "format" not in facts


def cut(name: str) -> str:
    """A name, or the beginning of one that no file system takes; a digest has to follow."""
    data = name.encode()
    return name if len(data) <= LONGEST else data[:READABLE].decode(errors="ignore")


def _packed(value: Any) -> Tensor:
    """JSON, compressed, as bytes; ids of images are many and alike."""
    text = json.dumps(value, separators=(",", ":"))
    return torch.frombuffer(bytearray(zlib.compress(text.encode(), 9)), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    return json.loads(zlib.decompress(data.numpy().tobytes()))
