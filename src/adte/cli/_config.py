"""A person's own defaults, see `adte.config`, in the place of the verbs' own."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["own_defaults"]


def own_defaults(ctx: click.Context) -> dict[str, Any]:
    """Defaults for the parameters of the verb that is about to run, by name of the parameter."""
    from adte.config import VERBS, load_config

    names = {ctx.info_name, *([ctx.parent.info_name] if ctx.parent else [])}
    verb = next((v for v in VERBS if v in names), None)
    if verb is None:
        return {}
    every = load_config().settings(verb).items()
    found = {k: s.value for k, s in every if s.origin != "ADTE_DTYPE"}  # models see to it
    out: dict[str, Any] = {}
    for param in (p for p in ctx.command.params if isinstance(p, click.Option)):
        keys = [param.name, *(opt.removeprefix("--").replace("-", "_") for opt in param.opts)]
        if key := next((k for k in keys if k in found), None):
            value = found[key]
            out[str(param.name)] = [value] if param.multiple and isinstance(value, str) else value
    return out
