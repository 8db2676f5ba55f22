"""What a stream is made of, and what happens to it, as both are written down."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from adte.core.errors import InputError
from adte.core.options import parse
from adte.core.schema import read, read_fields
from adte.images import Views
from adte.methods import method_info
from adte.models.prompts import Prompts
from adte.serve.limits import Limits

__all__ = ["ONCE", "Event", "Kind", "Settings"]

ONCE = "\n"  # begins a key that is made of images, as no key that is sent does

Kind = Literal[
    "learn", "image", "count", "look", "freeze", "unfreeze", "reset", "state", "temperature"
]  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a stream is made of; all but its state."""

    classes: list[str]
    prompts: dict[str, Any]
    method: str
    options: dict[str, Any]
    views: int
    seed: int
    protocol: str
    enlarge: float = 0.0  # of the views; streams of older versions have no limit

    @staticmethod
    def of(asked: dict[str, Any], limits: Limits) -> Settings:
        """What somebody asked for, checked without the model."""
        classes, options = asked["classes"], asked["options"]
        if asked.get("state") is not None and asked.get("start") is not None:
            raise InputError("state and start were both given; give one of them")
        if len(classes) > limits.max_classes:
            raise InputError(f"{len(classes)} classes are more than the {limits.max_classes} "
                             "that are allowed; use fewer")  # fmt: skip
        if asked["views"] > limits.max_views:
            raise InputError(f"views={asked['views']} are more than the {limits.max_views} "
                             "that are allowed; use fewer")  # fmt: skip
        prompts = Prompts.of(asked["templates"], asked.get("descriptions"))
        texts = len(classes) * len(prompts.templates) + sum(
            map(len, (prompts.descriptions or {}).values())
        )
        if texts > limits.max_prompts:
            raise InputError(f"{texts} prompts are more than the {limits.max_prompts} that are "
                             "allowed; use fewer classes or templates")  # fmt: skip
        info = method_info(asked["method"])
        typed = parse(info.cls, {k: _text(v) for k, v in options.items()})
        kept = json.loads(json.dumps(asdict(prompts)))  # equal to what the store gives
        return Settings(list(classes), kept, info.name, typed, asked["views"], asked["seed"],
                        asked["protocol"], Views.enlarge)  # fmt: skip

    @staticmethod
    def read(data: bytes) -> Settings:
        """As they were written down, in JSON; what is not like that raises a ValueError."""
        found: Settings = read(Settings, json.loads(data))
        read_fields(Prompts, found.prompts, "prompts")
        return found


@dataclass(frozen=True)
class Event:
    """Something that happened to a stream: its kind, the images it counts, and what redoes it."""

    kind: Kind
    images: int = 0
    data: bytes = b""


def _text(value: Any) -> str:
    """A JSON value as the command line would have it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
