"""Files that verbs write: checked before any work, and never over what is not of our making."""

from __future__ import annotations

import os
from typing import Any

import click

from adte.core.errors import InputError
from adte.files.claims import Target, claim
from adte.files.devices import StrPath

__all__ = ["add_force", "check_writable", "forced", "table_file", "writable"]

_FORCE = "adte.force"  # in a context: whether files of others may go


def forced(ctx: click.Context) -> bool:
    """Whether `--force` was given; True where a verb has none."""
    return bool(ctx.meta.get(_FORCE, True))


def writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a file that cannot be written, or that is another's, before any work is done for it.

    A verb with a `--force` of its own sees to the second by itself.
    """
    if value is not None and value != "-":
        check_writable(ctx, param.opts[0], value)
    return value


def check_writable(ctx: click.Context, option: str, path: StrPath) -> None:
    """The same for a file that follows from an option, or from its default."""
    if os.fspath(path) == "-":
        raise InputError(f"{option} '-' is not a file; give a file name")
    claim([Target(option, path)], force=forced(ctx))


def table_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The same for a table, whose suffix says its format."""
    from adte.evaluate.report.tables import check_suffix

    if value is not None:
        check_suffix(value)
    return writable(ctx, param, value)


def add_force(params: list[click.Parameter]) -> None:
    """Add `--force` to the parameters of a verb that writes files and has none of its own."""
    if any(p.callback in (writable, table_file) for p in params) and not any(
        "--force" in p.opts for p in params
    ):
        params.append(click.Option(
            ["--force"], is_flag=True, is_eager=True, expose_value=False, callback=_remember,
            help="Overwrite files that adte did not write.",
        ))  # fmt: skip


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> Any:
    ctx.meta[_FORCE] = value
