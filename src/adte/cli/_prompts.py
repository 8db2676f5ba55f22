"""The options that say more of the classes than their names."""

from __future__ import annotations

import click

from adte.core.errors import InputError

DESCRIPTIONS = click.option(
    "--descriptions", metavar="FILE",
    help="JSON file of sentences that describe each class, {name: [sentence, …]}, as CuPL has "
    "them; used instead of the templates.",
)  # fmt: skip
ALLOW_MISSING = click.option(
    "--allow-missing", is_flag=True,
    help="Use the templates for classes that have no sentence in --descriptions.",
)  # fmt: skip


def check_missing(descriptions: str | None, allowed: bool) -> None:
    if allowed and not descriptions:
        raise InputError("--allow-missing needs --descriptions, the file that may lack classes")
