"""Names for models: register one, or all names with a prefix.

A package of your own adds names by the same decorators, see `adte.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from adte.errors import InputError
from adte.models.base import Model
from adte.registry import Registry, check_name

__all__ = ["KINDS", "NAMES", "Named", "register_model", "register_models", "registered"]

L = TypeVar("L", bound=Callable[..., Model])


class Named(NamedTuple):
    """What loads one model, and the dtype it runs in unless told; None follows the device."""

    cls: Callable[..., Model]  # so called for the registry, which names its origin
    dtype: torch.dtype | None


NAMES: Registry[Named] = Registry("model")
KINDS: Registry[Callable[..., Model]] = Registry("kind of model")


def register_model(name: str, dtype: torch.dtype | None = None) -> Callable[[L], L]:
    """Decorator of a function that makes the model of this name, in float32 on the CPU.

    It takes nothing, or `weights` and `tokenizer` by name if it can use them. `dtype` is what the
    model runs in unless told; by default that follows the device. With its own weights the model
    has that name, whatever it called itself: states are loaded by it.
    """
    check_name(name, '@register_model("my-model")')

    def add(load: L) -> L:
        NAMES.add(name, Named(load, dtype))
        return load

    return add


def register_models(prefix: str) -> Callable[[L], L]:
    """Decorator of a function for all names with a prefix, such as "hf:".

    It is called with what stands behind the prefix, the weights and the tokenizer (None where none
    were given), and makes a model in float32 on the CPU. With its own weights and tokenizer the
    model has the whole name, whatever it called itself: states are loaded by it.
    """
    check_name(prefix, '@register_models("my:")')
    if not prefix.endswith(":"):
        raise InputError(f"the prefix {prefix!r} of models does not end in ':'; add it")

    def add(load: L) -> L:
        KINDS.add(prefix, load)
        return load

    return add


def registered() -> list[str]:
    """Names of single models, those of plug-ins too."""
    return list(NAMES)
