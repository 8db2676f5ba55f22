"""Puts the help of every verb into cli.md when the site is built, so that it is always current."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

MARK = "<!-- help -->"


def verbs(
    command: click.Command, name: str = "adte", parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """The command line and the help of a command and of all below it, in 80 columns."""
    settings = {"terminal_width": 80, "max_content_width": 80, **command.context_settings}
    context = click.Context(command, parent, name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from verbs(found, below, context)


def section(path: str, text: str) -> str:
    return f"{'#' * (path.count(' ') + 2)} {path}\n\n```text\n{text}\n```\n"


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Called by mkdocs with the text of every page."""
    if page.file.src_uri != "cli.md":
        return markdown
    from adte.cli import main

    return markdown.replace(MARK, "\n".join(section(*found) for found in verbs(main)))
