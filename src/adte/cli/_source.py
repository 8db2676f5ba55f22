"""The options that say which images, which model and which views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from adte.cli._options import OptionsOf, Section, was_given
from adte.cli._prompts import ALLOW_MISSING, DESCRIPTIONS, check_missing
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

CROPS = {"scale": "crop-scale", "ratio": "crop-ratio", "enlarge": "crop-enlarge",
         "flip": "crop-flip", "interpolation": "crop-filter"}  # fmt: skip
TEMPLATE = click.option(
    "--template", "templates", multiple=True, metavar="SET|TEXT|@FILE",
    help="Prompt template: the name of a set (single, seven, eighty, …), a text with {} for the "
    "class name (repeat for more), or @FILE with one text per line.  [default: the data set's own]",
)  # fmt: skip


class SourceOptions:
    """A decorator that adds the options of a `Source`, and what makes one of their values.

    Args:
        replay: only what can be said of a cache that is there.
    """

    def __init__(self, replay: bool = False) -> None:
        own = (*MODEL, "batch", "prompt_set")
        self.data = OptionsOf(Asked, only=("seed",) if replay else (*FOR_IMAGES, "seed"))
        self.model = OptionsOf(Asked, only=own)
        self.stream = OptionsOf(
            StreamOptions, only=("limit",) if replay else None, prefix="stream_",
            names={"seed": "stream-seed"}, seed=None,
            helps={"seed": "seed of the order of the images alone; by default that of --seed"},
        )  # fmt: skip
        self.views = OptionsOf(
            Views, only=("count",) if replay else None, prefix="view_",
            names={"count": "views", "seed": "view-seed", **CROPS},
            helps={"count": "views per image, the image itself (base view) among them; by "
                            "default 64, or as many as the cache has",
                   "seed": "seed of the random crops alone; by default that of --seed"},
            count=None, seed=None,
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
        """The source that was asked for; its options are taken out of the values.

        A person's own defaults are for images; of a cache only what was asked for now must hold.
        """
        from adte.evaluate.source import Source
        from adte.files.lists import read_templates
        from adte.models.prompts import Prompts

        named = more.get("data") or values.get("data") or ()
        images = bool(named) and not any(spec.startswith(FEATURES) for spec in named)
        given: tuple[str, ...] = values.pop("templates")
        templates = tuple(read_templates(given if was_given("templates", images) else ()))
        descriptions, allowed = values.pop("descriptions"), values.pop("allow_missing")
        check_missing(descriptions, allowed)
        prompts = None
        if templates or descriptions:
            said = templates[0] if len(templates) == 1 else templates or "single"
            prompts = Prompts.of(said, descriptions, allow_missing=allowed)
        return Source(
            **self.data.given(values, images),
            **self.model.given(values, images),
            stream=self.stream.given(values, images),
            views=self.views.given(values, images),
            prompts=prompts,
            **more,
        )
