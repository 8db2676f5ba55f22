"""`models get`, beside the list that `models` prints."""

from __future__ import annotations

import click

from adte.cli._group import Verbs, main
from adte.cli.lists import models as listing
from adte.files import console


class Listed(Verbs):
    """A group that lists if its first word is none of its verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@main.group("models", cls=Listed)
def models() -> None:
    """List the models (`adte models [PATTERN]`), or download the weights of one (`adte models get
    NAME`).
    """


models.add_command(listing, "list")


@models.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="URL|FILE|FOLDER",
    help="Take the weights from here: a file, a folder that holds it, or such a folder's address.",
)
@click.option(
    "--to",
    metavar="FILE",
    help="Write the weights to FILE, to be given as --weights, and not to the usual cache.",
)
def get(name: str, source: str | None, to: str | None) -> None:  # fmt: skip
    """Download the weights of the open_clip model NAME, such as ViT-B-16/openai.

    The addresses are those that open_clip publishes. A download that was interrupted continues
    where it stopped. Where a checksum is published, the file is verified.
    """
    from adte.models.get import get_model

    with console.progress(name, None) as bar:
        path = get_model(name, source, to, bar.download)
    console.out.print(f"done: {path}", markup=False, soft_wrap=True)
    use = name if to is None else f"{name} --weights {path}"
    console.out.print(f"use it: adte predict IMAGES --classes NAMES --model {use}",
                      markup=False, soft_wrap=True)  # fmt: skip
