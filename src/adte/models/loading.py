"""How a model is loaded: all that `load_model` takes beside its name, declared once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from adte.models.base import Model
from adte.models.registry import find_device, find_dtype, load_model
from adte.models.runtime import Runtime, check_runtime
from adte.options import option

__all__ = ["Loading"]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Plain data, so that a worker can be told. What loads a model inherits its options."""

    weights: str | None = option(None, "a checkpoint file, or 'random'")
    device: str | None = option(None, "where it runs, such as cpu or cuda; the best by default")
    dtype: str | None = option(
        None, "of its weights, float32 or bfloat16; what the processor does best by default"
    )
    tokenizer: str | None = option(
        None, "a folder with the tokenizer's files, where the model's own cannot be downloaded"
    )
    runtime: Runtime = option(  # noqa: RUF009
        "auto",
        "what computes the image tower: the library (torch), a faster forward (fast), the same "
        "compiled, with float8 products, or OpenVINO; auto is fast on CUDA, torch elsewhere",
    )

    def check(self) -> None:
        """Refuse, before anything is loaded, what cannot be had on this machine."""
        check_runtime(self.runtime)
        if self.device is not None:
            find_device(self.device)
        if self.dtype is not None:
            find_dtype(self.dtype)

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

    def load(self, name: str) -> Model:
        """The model of this name."""
        return load_model(name, **asdict(self.loading))
