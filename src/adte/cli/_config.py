"""A person's own defaults, see `adte.cli.config`, in the place of the verbs' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adte.core.errors import brief

if TYPE_CHECKING:
    from adte.cli.config import Setting

__all__ = ["note_folders", "own_defaults"]


def own_defaults(ctx: click.Context) -> dict[str, tuple[str, Setting]]:
    """Keys and defaults for the parameters of the verb that is about to run, by name of the
    parameter.
    """
    from adte.cli.config import VERBS, load_config

    names = {ctx.info_name, *([ctx.parent.info_name] if ctx.parent else [])}
    verb = next((v for v in VERBS if v in names), None)
    if verb is None:
        return {}
    every = load_config().settings(verb).items()
    found = {k: s for k, s in every if s.origin != "ADTE_DTYPE"}  # models see to it
    out: dict[str, tuple[str, Setting]] = {}
    for param in (p for p in ctx.command.params if isinstance(p, click.Option)):
        keys = [param.name, *(opt.removeprefix("--").replace("-", "_") for opt in param.opts)]
        if key := next((k for k in keys if k in found), None):
            value: Any = found[key].value
            value = [value] if param.multiple and isinstance(value, str) else value
            out[str(param.name)] = key, found[key]._replace(value=value)
    return out


def note_folders(ctx: click.Context, own: Mapping[str, tuple[str, Setting]]) -> None:
    """Say which options the file of the current folder sets, unless with -q."""
    from adte.cli.config import FOLDERS

    used = ", ".join(
        f"{key}={brief(value)}"
        for name, (key, (value, origin)) in own.items()
        if origin == FOLDERS and ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    )
    if used and not (ctx.resilient_parsing or ctx.params.get("quiet")):
        click.echo(f"note: {FOLDERS} sets {used}", err=True)
