"""Names for models: register one, or all names with a prefix.

A package of your own adds names by the same decorators, see `adte.core.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from adte.core.errors import InputError
from adte.core.loading import EMBEDDED
from adte.core.registry import Registry, check_name
from adte.models.base import Model

__all__ = [
    "KINDS", "NAMES", "Named", "may_have_classes", "register_model", "register_models",
    "registered",
]  # fmt: skip

L = TypeVar("L", bound=Callable[..., Model])


class Named(NamedTuple):
    """What loads one model, and the dtype it runs in unless told; None follows the device."""

    cls: Callable[..., Model]  # so called for the registry, which names its origin
    dtype: torch.dtype | None


NAMES: Registry[Named] = Registry("model")
KINDS: Registry[Callable[..., Model]] = Registry("kind of model")


def register_model(name: str, dtype: torch.dtype | None = None) -> Callable[[L], L]:
    """Decorator that registers a function as the loader of the model NAME, for `load_model`.

    The function returns a `Model` in float32 on the CPU. It takes no arguments, or `weights` and
    `tokenizer` by keyword if it can use them. Loaded with its own weights, the model gets this
    name, so that saved classifiers find it again.

    Args:
        name: such as "my-model".
        dtype: dtype that the model runs in by default; None lets the device decide.
    """
    check_name(name, '@register_model("my-model")')

    def add(load: L) -> L:
        NAMES.add(name, Named(load, dtype))
        return load

    return add


def register_models(prefix: str) -> Callable[[L], L]:
    """Decorator that registers a function as the loader of all models with a prefix.

    The function is called with the rest of the name, the weights and the tokenizer (None if not
    given), and returns a `Model` in float32 on the CPU. Loaded with its own weights and tokenizer,
    the model gets the whole name, so that saved classifiers find it again.

    Args:
        prefix: such as "hf:"; it ends in a colon.
    """
    check_name(prefix, '@register_models("my:")')
    if not prefix.endswith(":"):
        raise InputError(f"the prefix {prefix!r} of models does not end in ':'; add it")

    def add(load: L) -> L:
        KINDS.add(prefix, load)
        return load

    return add


def may_have_classes(name: str) -> bool:
    """Whether the model of a name may be one of fixed classes; it is not loaded to see."""
    family = name.startswith(tuple(prefix for prefix in KINDS if prefix != "hf:"))
    return family or (name in NAMES and name not in EMBEDDED)


def registered() -> list[str]:
    """Names of single models, those of plug-ins too."""
    return list(NAMES)
