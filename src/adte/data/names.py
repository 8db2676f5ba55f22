"""Class names: ImageNet's thousand with its subsets, and names from a user's file."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, unknown

__all__ = ["imagenet_classes", "imagenet_ids", "imagenet_names", "read_names"]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = files("adte.data").joinpath("imagenet.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def imagenet_classes(subset: str = "imagenet") -> tuple[tuple[str, str], ...]:
    """(WordNet id, name) of ImageNet-1k or a subset, in label order, which is that of the ids.

    The names are those of OpenAI's notebook on prompts for ImageNet. Two of them occur twice,
    so key nothing by name.

    Args:
        subset: imagenet, imagenet-a, imagenet-r or tiny-imagenet.

    >>> imagenet_classes()[0], len(imagenet_classes("imagenet-a"))
    (('n01440764', 'tench'), 200)
    """
    table = _table()
    if subset == "imagenet":
        return tuple((wnid, name) for wnid, name in table["classes"])
    subsets = [k for k in table if k not in ("source", "classes")]
    if subset not in subsets:
        raise unknown("subset of ImageNet", subset, ["imagenet", *subsets])
    return tuple((wnid, name) for wnid, name in (table["classes"][i] for i in table[subset]))


def imagenet_ids(subset: str = "imagenet") -> tuple[str, ...]:
    """The WordNet ids, sorted."""
    return tuple(wnid for wnid, _ in imagenet_classes(subset))


def imagenet_names(subset: str = "imagenet") -> tuple[str, ...]:
    """The names by label."""
    return tuple(name for _, name in imagenet_classes(subset))


def read_names(path: str | os.PathLike[str], by_label: bool = False) -> dict[str, str]:
    """Class names from a file, by class id, in label order.

    A JSON object {id: name} is sorted by id, as numbers where all ids are; a JSON list or a text
    file with one name a line gives the names by label, under the ids "0", "1", …

    Args:
        path: of the file.
        by_label: the position is the label, so ids that are numbers have to be 0, 1, …
    """
    path = Path(os.path.expanduser(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read class names from {str(path)!r} ({error}); give a JSON object or list, "
            "or a text file with one name a line"
        ) from error
    if isinstance(data, dict):
        numbers = all(k.isdecimal() for k in data)
        names = {k: data[k] for k in (sorted(data, key=int) if numbers else sorted(data))}
        if by_label and numbers and [int(k) for k in names] != list(range(len(names))):
            raise InputError(
                f"the class names in {str(path)!r} are numbered {', '.join(list(names)[:3])}, …; "
                f"number them from 0 to {len(names) - 1}, as the labels are"
            )
    elif isinstance(data, list):
        while data and not data[-1]:
            data.pop()
        names = {str(i): name for i, name in enumerate(data)}
    else:
        names = {}
    bad = [k for k, v in names.items() if not isinstance(v, str) or not v.strip()]
    if bad or not names:
        what = f"class {bad[0]!r} has no name" if bad else "there is none"
        raise InputError(
            f"{str(path)!r} is not a list of class names ({what}); give a text for every class"
        )
    return {k: v.strip() for k, v in names.items()}
