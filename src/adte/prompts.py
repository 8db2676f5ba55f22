"""Class names and templates to class weights: one unit vector a class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from adte.errors import InputError
from adte.models.base import Model

__all__ = ["SINGLE", "check_classes", "check_templates", "class_weights"]

SINGLE = ("a photo of a {}.",)


def check_classes(classes: Sequence[str]) -> list[str]:
    """Class names as a list. Repeats are allowed, since classes are told apart by index."""
    if isinstance(classes, str):
        raise InputError(f"classes={classes!r} is one text; pass a list of names")
    names = [str(c).strip() for c in classes]
    if not names:
        raise InputError("no class names were given; pass at least one")
    if blank := [i for i, n in enumerate(names) if not n]:
        raise InputError(f"class name number {blank[0]} is empty; give it a name or remove it")
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        warnings.warn(
            f"class name {repeated[0]!r} occurs more than once; classes are kept apart by "
            "index, and a tie goes to the first",
            stacklevel=3,
        )
    return names


def check_templates(templates: Sequence[str]) -> list[str]:
    """Templates as a list; each must have a place for the name."""
    templates = [templates] if isinstance(templates, str) else list(templates)
    if not templates:
        raise InputError(
            "no prompt template was given; pass at least one, such as 'a photo of a {}.'"
        )
    for t in templates:
        if t.count("{}") != 1:
            raise InputError(f"template {t!r} must hold {{}} once, where the class name goes")
    return templates


def class_weights(
    model: Model, classes: Sequence[str], templates: Sequence[str] = SINGLE
) -> Tensor:
    """Unit class vectors (L, D): each prompt's unit vector, averaged over templates, made unit."""
    names = [c.replace("_", " ") for c in classes]
    total = torch.zeros(len(names), model.dim)
    with torch.no_grad():
        for template in check_templates(templates):
            vectors = model.encode_text([template.format(n) for n in names])
            total += vectors.to(total)
    return torch.nn.functional.normalize(total, dim=-1)
