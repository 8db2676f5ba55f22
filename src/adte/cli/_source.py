"""The options of images, model and views, shared by the verbs that evaluate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from adte.cli._group import PARTS, split_settings
from adte.cli._options import OptionsOf, Section, was_given
from adte.cli._prompts import ALLOW_MISSING, DESCRIPTIONS, check_missing
from adte.core.errors import InputError
from adte.core.loading import Loading
from adte.data.streams import StreamOptions
from adte.evaluate.asked import FEATURES, Asked
from adte.images import Views

if TYPE_CHECKING:
    from adte.evaluate.source import Source

Command = Callable[..., Any]

MODEL = ("model", *(f.name for f in fields(Loading)))  # wherever a model runs
# What only images can be made into; a cache was made.
FOR_IMAGES = ("data", "corrupt", "severity", "clean", "workers", "strict")

TEMPLATE = click.option(
    "--template", "templates", multiple=True, metavar="SET|TEXT|@FILE",
    help="Prompt template: the name of a set (single, seven, eighty, …), a text with {} for the "
    "class name (repeat for more), or @FILE with one text per line.  [default: the data set's own]",
)  # fmt: skip


class SourceOptions:
    """A decorator that adds the options of a `Source`, and what makes one of their values.

    Args:
        replay: only the options that a finished cache can have.
    """

    def __init__(self, replay: bool = False) -> None:
        own = (*MODEL, "batch", "prompt_set")
        self.data = OptionsOf(Asked, only=("seed",) if replay else (*FOR_IMAGES, "seed"))
        self.model = OptionsOf(Asked, only=own)
        order = ("limit",) if replay else ("order", "domains", "limit")
        self.stream = OptionsOf(StreamOptions, only=order, prefix="stream_")
        self.views = OptionsOf(
            Views, only=("count",), prefix="view_", names={"count": "views"}, count=None,
            helps={"count": "views per image, the image itself (base view) among them; by "
                            "default 64, or as many as the cache has"},
        )  # fmt: skip
        self.sections = (
            Section("Images", self.data, self.stream),
            Section("Model and prompts", self.model, TEMPLATE, DESCRIPTIONS, ALLOW_MISSING),
            Section("Views", self.views),
        )

    def __call__(self, command: Command) -> Command:
        for add in reversed(self.sections):
            command = add(command)
        return command

    def take(self, values: dict[str, Any], **more: Any) -> Source:
        """The source that was asked for; its options are taken out of the values, those by --set
        too.

        A person's own defaults are for images; of a cache only what was asked for now must hold.
        """
        from adte.evaluate.source import Source
        from adte.files.lists import read_templates
        from adte.models.prompts import Prompts

        named = more.get("data") or values.get("data") or ()
        images = bool(named) and not any(spec.startswith(FEATURES) for spec in named)
        words: tuple[str, ...] = values.pop("templates")
        templates = tuple(read_templates(words if was_given("templates", images) else ()))
        descriptions, allowed = values.pop("descriptions"), values.pop("allow_missing")
        check_missing(descriptions, allowed)
        prompts = None
        if templates or descriptions:
            texts = templates[0] if len(templates) == 1 else templates or "single"
            prompts = Prompts.of(texts, descriptions, allow_missing=allowed)
        rare = taken_settings(values)
        return Source(
            **self.data.given(values, images),
            **self.model.given(values, images),
            stream={**self.stream.given(values, images), **rare["stream"]},
            views={**self.views.given(values, images), **rare["views"]},
            prompts=prompts,
            **more,
        )


def taken_settings(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rare options of views and stream, typed; those of the method stay in the values."""
    from adte.core.options import parse

    pairs = split_settings(values["settings"])
    texts: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for name in [n for n in pairs if n.startswith(PARTS)]:
        part, _, option = name.partition(".")
        texts[f"{part}."][option] = pairs.pop(name)
    values["settings"] = tuple(f"{name}={value}" for name, value in pairs.items())
    views, stream = (texts[part] for part in PARTS)
    return {"views": parse(Views, views), "stream": parse(StreamOptions, stream)}


def no_method_settings(values: dict[str, Any]) -> None:
    """Refuse options of a method where a verb runs several."""
    if rest := values.pop("settings"):
        raise InputError(
            f"--set {rest[0]} is no option of the views or of the stream; write it as views.flip=0 "
            "or stream.imbalance=zipf, and set options of a method with `adte eval` or `adte sweep`"
        )
