"""The recipe: all that decides the features of a stream, typed, as JSON, and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, StateError, brief
from adte.core.schema import Count, Positive, read, read_fields, written
from adte.data.streams import other_images
from adte.evaluate.stored import digest_of, read_json, write_json
from adte.files.whole import check_readable
from adte.images import Preprocess, Views

__all__ = [
    "FILE",
    "FORMAT",
    "Recipe",
    "check_same",
    "difference",
    "flat",
    "read_recipe",
    "write_recipe",
]

FORMAT = 2
FILE = "recipe.json"

# What must agree for two sets of features to be the same.
DECIDING = ("model", "fingerprint", "dtype", "preprocess", "views", "data", "classes", "shard")
DERIVED = ("changes", "digest")  # facts of a stream that follow from its images and their order
SHOWN = 5  # differences that an error names


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The origin of a stream of features.

    Attributes:
        model, fingerprint, dtype, device: the tower, its weights, and how and where it ran.
        kernel, runtime: what resized the crops, and what computed the tower.
        dim, scale, bias, unit: width of the features, and how logits follow from them.
        fixed_classes: whether the model has no text tower, and its features are logits.
        views, preprocess: how an image became pixels.
        data: the stream's own description: sets, order, seed, number of images.
        classes, class_ids: the label space; frequency: training images of each class, if known.
        prompts: the texts of each class.
        part: which part of the stream this is, in words; None for all of it.
        content: digests of a few images, see `Stream.content`; empty where they were not read.
        shard: images a file, for a cache.
    """

    model: str
    classes: tuple[str, ...]
    class_ids: tuple[str, ...] = ()
    fingerprint: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    kernel: str = ""
    runtime: str = ""
    dim: int = 0
    scale: float = 1.0
    bias: float = 0.0
    unit: bool = True
    fixed_classes: bool = False
    views: Views = field(default_factory=Views)
    preprocess: Preprocess = field(default_factory=Preprocess)
    data: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, Any] = field(default_factory=dict)
    frequency: tuple[float, ...] | None = None
    part: str | None = None
    content: tuple[str, ...] = ()
    shard: int = 0

    def narrowed(self, classes: list[int], name: str) -> Recipe:
        """The same in a label space of some classes alone."""
        kept: dict[str, Any] = {}
        for key in ("classes", "class_ids", "frequency"):
            values = getattr(self, key)
            kept[key] = tuple(values[c] for c in classes) if values else values
        return replace(self.named(f"{name} {classes}"), **kept)

    def named(self, name: str) -> Recipe:
        """The same, as a part with a name."""
        return replace(self, part=f"{self.part or ''} {name}".strip())

    def to_json(self) -> dict[str, Any]:
        """As JSON has it, without what belongs to a prompt set or to a part."""
        out = {"format": FORMAT, **asdict(self), "views": written(self.views)}
        for name in ("prompts", "part"):
            out.pop(name)
        return out

    @property
    def digest(self) -> str:
        """Of what must agree for two sets of features to be the same."""
        facts = self.to_json()
        return digest_of([facts[key] for key in DECIDING])


def write_recipe(folder: Path, recipe: Recipe) -> None:
    write_json(folder / FILE, recipe.to_json())


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a cache, checked: a fact that is missing or of another kind is named."""
    path = folder / FILE
    check_readable(path)
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} is not a cache: it holds no {FILE}; make one with `adte extract`"
        )
    mend = "delete it and run the same `adte extract` again, finished shards stay"
    facts = read_json(path, (1, FORMAT), mend)
    try:
        recipe = Recipe(**read_fields(Recipe, facts, more=True, shard=Positive))
        read(Count, recipe.data.get("images"), "data.images")
    except ValueError as error:
        raise StateError(f"{str(path)!r} is damaged ({error}); {mend}") from error
    return recipe


def check_same(folder: Path, known: Recipe, wanted: Recipe) -> None:
    """Refuse to continue a cache that was made otherwise, by the name of what differs."""
    mine, asked = (json.loads(json.dumps(r.to_json())) for r in (known, wanted))
    for key in DECIDING:
        if mine[key] != asked[key]:
            raise StateError(
                f"the cache {str(folder)!r} was made with another {key}: "
                f"{difference(mine[key], asked[key])}; choose another folder, or ask for what it "
                "holds"
            )
    if other_images(known.content, wanted.content):
        raise StateError(
            f"the cache {str(folder)!r} was made of other images of the same names; extract into "
            "another folder"
        )


def flat(facts: Any, name: str = "") -> dict[str, Any]:
    """Facts by dotted name, those inside of mappings and lists too.

    >>> flat({"views": {"count": 4}, "sets": [{"name": "pets"}]})
    {'views.count': 4, 'sets.0.name': 'pets'}
    """
    if not isinstance(facts, (Mapping, list)):
        return {name: facts}
    pairs = facts.items() if isinstance(facts, Mapping) else enumerate(facts)
    return {k: v for key, x in pairs for k, v in flat(x, f"{name}.{key}".strip(".")).items()}


def difference(mine: Any, asked: Any) -> str:
    """The fields that differ, in words.

    >>> difference({"limit": None, "images": 24}, {"limit": 5, "images": 5})
    'limit: None there, 5 asked for; images: 24 there, 5 asked for'
    """
    a, b = flat(mine), flat(asked)
    apart = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    words = [f"{k}{': ' * bool(k)}{brief(a.get(k))} there, {brief(b.get(k))} asked for"
             for k in apart if k not in DERIVED]  # fmt: skip
    if not words:
        return "names or order of the images" if apart else "the same words, other numbers"
    more = [f"and {len(words) - SHOWN} more"] if len(words) > SHOWN else []
    return "; ".join(words[:SHOWN] + more)
