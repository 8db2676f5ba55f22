"""What computes the image tower where gradients are off: `load_model(…, runtime=…)`.

| runtime | what it is |
|---|---|
| `auto` | `fast` on CUDA where it knows the tower; `torch` elsewhere |
| `torch` | the library's own forward |
| `fast` | the forward of `models/fast.py`, the same numbers but for rounding |
| `compile` | the same through torch.compile: a minute at the first pass, then faster |
| `float8` | `fast` with the MLPs' products in float8, on CUDA of compute capability 8.9 or more |
| `openvino` | OpenVINO on a CPU, in the model's dtype; the extra `openvino` |

The environment variable ADTE_RUNTIME says what `auto` is, for every command; caches record it.

Gradients, texts, the weights and their fingerprint are the library's under all of them. A runtime
that was asked for and cannot be had is an error; `auto` then leaves the model as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from adte.core.errors import InputError, unknown
from adte.core.loading import Runtime
from adte.models.base import Model
from adte.models.fast import accelerate

__all__ = ["RUNTIMES", "Runtime", "check_runtime", "with_runtime"]


def _openvino(model: Model) -> Model:
    from adte.models.openvino import convert

    return convert(model)


def _auto(model: Model) -> Model:
    if (forced := os.environ.get("ADTE_RUNTIME", "auto")) != "auto":
        return with_runtime(model, forced)
    if model.device.type != "cuda" or model._visual is None:
        return model
    try:
        return accelerate(model)
    except InputError:  # a tower that it does not know
        return model


RUNTIMES: dict[str, Callable[[Model], Model]] = {
    "auto": _auto,
    "torch": lambda model: model,
    "fast": accelerate,
    "compile": partial(accelerate, compile=True),
    "float8": partial(accelerate, float8=True),
    "openvino": _openvino,
}


def check_runtime(name: str) -> None:
    """Refuse a name that is none, before anything is loaded."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, RUNTIMES)
    forced = os.environ.get("ADTE_RUNTIME", "auto")
    if name == "auto" and forced not in RUNTIMES:
        raise unknown("runtime in ADTE_RUNTIME", forced, RUNTIMES)


def with_runtime(model: Model, name: str) -> Model:
    """The model with its image tower computed so."""
    check_runtime(name)
    return RUNTIMES[name](model)
