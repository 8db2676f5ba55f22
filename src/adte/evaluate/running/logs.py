"""Runs logged to where a team looks at them: TensorBoard or Weights & Biases.

with open_log("tensorboard:logs") as log:
    run_tasks(stream, tasks, end=log.record)
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from importlib import import_module
from typing import Any

from adte.core.errors import InputError, MissingExtra, unknown
from adte.evaluate.running.results import Record, cut
from adte.files import make_folder

__all__ = ["Log", "open_log"]


class Log(ABC):
    """Takes the records of finished runs, as `adte.evaluate.running.tasks.run_tasks` ends them."""

    @abstractmethod
    def record(self, record: Record) -> None:
        """Log a run: its figures under its title, its protocol as text or configuration."""

    def close(self) -> None:
        """Write what is not written yet."""
        return

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_log(spec: str | None) -> Log:
    """The log that a text names: "tensorboard:FOLDER" or "wandb:PROJECT"; None logs nothing."""
    if spec is None:
        return _Nothing()
    kind, _, where = spec.partition(":")
    kinds = {"tensorboard": _TensorBoard, "wandb": _Wandb}
    if kind not in kinds:
        raise unknown("log", kind, kinds)
    if not where:
        what = "FOLDER" if kind == "tensorboard" else "PROJECT"
        raise InputError(f"the log {spec!r} does not say where to; write it as {kind}:{what}")
    return kinds[kind](where)


def scalars(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number, those inside mappings as `by_domain/fog`; what is no number is left out."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, float(value)


def _name(record: Record) -> str:
    """Title and protocol, as in `adte, two-pass`."""
    about = record.conditions
    return f"{record.title}, {about.protocol}" if about.stateful else record.title


def _folder(record: Record) -> str:
    """The same as the name of a folder; what was cut off a long one is in a digest."""
    name = re.sub(r"[^\w.,=+ -]+", "_", _name(record))
    short = cut(name)
    if short == name:
        return name
    return f"{short}-{blake2b(name.encode(), digest_size=6).hexdigest()}"


class _Nothing(Log):
    def record(self, record: Record) -> None:
        return


class _TensorBoard(Log):
    """A run of TensorBoard for every row, named by its title; the seed is the step."""

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", "logs", "--log tensorboard") from error
        self._folder = make_folder(folder)
        self._make: Any = SummaryWriter  # untyped
        self._writers: dict[str, Any] = {}

    def record(self, record: Record) -> None:
        name = _folder(record)
        if name not in self._writers:
            self._writers[name] = self._make(str(self._folder / name))
        writer = self._writers[name]
        step = record.conditions.order_seed
        for tag, value in scalars(record.metrics):
            writer.add_scalar(tag, value, step)
        text = json.dumps(record.to_json()["protocol"], indent=1, ensure_ascii=False)
        writer.add_text("protocol", "    " + text.replace("\n", "\n    "), step)  # as code
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


class _Wandb(Log):
    """A run of Weights & Biases for every record; the seeds of a row make a group."""

    def __init__(self, project: str) -> None:
        try:
            self._wandb: Any = import_module("wandb")
        except ImportError as error:
            raise MissingExtra("wandb", "logs", "--log wandb") from error
        self._project = project

    def record(self, record: Record) -> None:
        name, seed = _name(record), record.conditions.order_seed
        with self._wandb.init(
            project=self._project, group=name, name=f"{name}, seed {seed}",
            config=record.to_json()["protocol"], reinit="finish_previous",
        ) as run:  # fmt: skip
            run.log(dict(scalars(record.metrics)))
