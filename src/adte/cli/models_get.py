"""`models get`, beside the list that `models` prints."""

from __future__ import annotations

import click

from adte import console
from adte.cli._group import Verbs, main
from adte.cli.lists import models as listing


class Listed(Verbs):
    """A group that lists if its first word is none of its verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@main.group("models", cls=Listed)
def models() -> None:
    """List models, or get the weights of one: `adte models [PATTERN]`, `adte models get NAME`."""


models.add_command(listing, "list")


@models.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="URL|FILE|FOLDER",
    help="A copy: the file, a folder that holds it, or the address of such a folder.",
)
@click.option(
    "--to",
    metavar="FILE",
    help="Write it there, for --weights, and not to the cache where it is looked for.",
)
def get(name: str, source: str | None, to: str | None) -> None:  # fmt: skip
    """Download the weights of the open_clip model NAME, such as ViT-B-16/openai.

    A download that stopped goes on where it was, and is checked where a checksum is published. The
    addresses are those that open_clip publishes.
    """
    from adte.models.get import get_model

    with console.progress(name, None) as bar:
        path = get_model(name, source, to, bar.download)
    console.out.print(f"done: {path}", markup=False, soft_wrap=True)
    use = name if to is None else f"{name} --weights {path}"
    console.out.print(f"use it: adte predict IMAGES --classes NAMES --model {use}",
                      markup=False, soft_wrap=True)  # fmt: skip
