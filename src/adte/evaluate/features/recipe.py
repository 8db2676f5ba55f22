"""The recipe: all that decides the features of a stream, typed, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

from adte.core.errors import StateError
from adte.core.schema import Count, Positive, read, read_fields, written
from adte.images import Preprocess, Views

__all__ = ["FORMAT", "Recipe"]

FORMAT = 2

# What must agree for two sets of features to be the same.
DECIDING = ("model", "fingerprint", "dtype", "preprocess", "views", "data", "classes", "shard")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a stream of features was made of.

    Attributes:
        model, fingerprint, dtype, device: the tower, its weights, and how and where it ran.
        kernel, runtime: what resized the crops, and what computed the tower.
        dim, scale, bias, unit: width of the features, and how logits follow from them.
        fixed_classes: whether the model has no text tower, and its features are logits.
        views, preprocess: how an image became pixels.
        data: what the stream says of itself: sets, order, seed, number of images.
        classes, class_ids: the label space; frequency: training images of each class, if known.
        prompts: what was said of each class.
        part: which part of the stream this is, in words; None for all of it.
        content: digests of a few images, see `Stream.content`; none if nobody looked at them.
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
        """The same, as a part that says which."""
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
        text = json.dumps([facts[key] for key in DECIDING], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], where: str) -> Recipe:
        """Checked: a fact that is missing or of another kind is named."""
        if facts.get("format") not in (1, FORMAT):
            raise StateError(
                f"the cache {where} has format {facts.get('format')}, this version reads 1 and "
                f"{FORMAT}; make it again with `adte extract`"
            )
        try:
            recipe = cls(**read_fields(cls, facts, more=True, shard=Positive))
            read(Count, recipe.data.get("images"), "data.images")
        except ValueError as error:
            raise StateError(
                f"the recipe of the cache {where} is damaged ({error}); delete recipe.json and run "
                "the same `adte extract` again, finished shards stay"
            ) from error
        return recipe
