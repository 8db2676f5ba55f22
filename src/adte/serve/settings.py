"""The settings of a stream, and the events that happen to it, as both are written down."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from adte.core.errors import InputError
from adte.core.options import parse
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
    """All that a stream is made of but its state."""

    classes: list[str]
    prompts: dict[str, Any]
    method: str
    options: dict[str, Any]
    views: int
    seed: int
    protocol: str
    enlarge: float  # of the views

    @staticmethod
    def of(asked: dict[str, Any], limits: Limits) -> Settings:
        """The settings that a request asks for, checked without the model."""
        classes = asked["classes"]
        if asked.get("state") is not None and asked.get("start") is not None:
            raise InputError("state and start were both given; give one of them")
        prompts = Prompts.of(asked["templates"], asked.get("descriptions"))
        texts = len(classes) * len(prompts.templates) + sum(
            map(len, (prompts.descriptions or {}).values())
        )
        for count, what, most in (
            (len(classes), "classes", limits.max_classes),
            (asked["views"], "views", limits.max_views),
            (texts, "prompts", limits.max_prompts),
        ):
            if count > most:
                raise InputError(f"{count} {what} are more than the {most} that are allowed; "
                                 "use fewer")  # fmt: skip
        info = method_info(asked["method"])
        options = parse(info.cls, {k: _text(v) for k, v in asked["options"].items()})
        plain = json.loads(json.dumps(asdict(prompts)))  # as the store gives it back
        return Settings(list(classes), plain, info.name, options, asked["views"], asked["seed"],
                        asked["protocol"], Views.enlarge)  # fmt: skip


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
