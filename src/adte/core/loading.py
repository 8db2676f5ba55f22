"""How a model is loaded, as plain data, without torch: a command line can show it at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from adte.core.options import option

__all__ = ["DEFAULT_MODEL", "EMBEDDED", "MOST_THREADS", "Loading", "Runtime"]

EMBEDDED = ("lite", "tiny", "tiny-longtail")  # the package's own, which read class names
DEFAULT_MODEL = os.environ.get("ADTE_MODEL") or "lite"
MOST_THREADS = 1024  # a slip of the keyboard would end in a crash of OpenMP
Runtime = Literal["auto", "torch", "fast"]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options with which a model is loaded, as plain data that can be sent to a worker.

    Classes that load a model inherit them.
    """

    weights: str | None = option(
        None, "checkpoint file to load instead of the model's own weights, or 'random'"
    )
    device: str | None = option(
        None, "device to run the model on, such as cpu or cuda; by default CUDA if there is one"
    )
    dtype: str | None = option(
        None,
        "number type of the model, float32 or bfloat16; by default bfloat16 if the device computes "
        "in it",
    )
    tokenizer: str | None = option(
        None, "folder with the tokenizer's files, if the model's own cannot be downloaded"
    )
    runtime: Runtime = option(  # noqa: RUF009
        "auto",
        "code that computes the image tower: the library's (torch) or our faster one (fast); auto "
        "is fast on CUDA and torch elsewhere",
    )
    threads: int | None = option(
        None,
        "threads that compute the model on a CPU; by default one for small work and all cores for "
        "large, or as many as OMP_NUM_THREADS says",
        low=1,
        high=MOST_THREADS,
    )

    @staticmethod
    def among(values: Mapping[str, Any]) -> Loading:
        """These options among others."""
        return Loading(**{f.name: values[f.name] for f in fields(Loading)})

    @property
    def loading(self) -> Loading:
        """These options alone."""
        return Loading.among(vars(self))

    def for_another(self, said: Collection[str]) -> Loading:
        """The same for another model, without the files that nobody named for it."""
        weights = self.weights if "weights" in said else None
        tokenizer = self.tokenizer if "tokenizer" in said else None
        return replace(self.loading, weights=weights, tokenizer=tokenizer)
