"""Command-line options made from option dataclasses: written once, with their help and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from adte.cluster.connect import ClusterOptions
from adte.core.errors import InputError
from adte.core.options import choices

__all__ = ["FINITE", "Engine", "OptionsOf", "Section", "was_given"]

Command = Callable[..., Any]


class Finite(click.ParamType):  # type: ignore[type-arg]  # newer versions have one
    """A number that is neither infinite nor nan."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


FINITE = Finite()


class Count(click.IntRange):
    """A whole number, or the word auto."""

    name = "number or 'auto'"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class Section:
    """A decorator that puts the options of others under a heading."""

    def __init__(self, heading: str, *options: Callable[[Command], Command]) -> None:
        self.heading, self.options = heading, options

    def __call__(self, command: Command) -> Command:
        before = len(_params(command))
        for add in reversed(self.options):
            command = add(command)
        for param in _params(command)[before:]:
            param.section = self.heading  # type: ignore[attr-defined]
        return command


def _params(command: Command) -> list[click.Parameter]:
    """The parameters that decorators have added to a command so far, the last first."""
    params: list[click.Parameter] = getattr(command, "__click_params__", [])
    return params


class OptionsOf:
    """A decorator that adds an option for every option field of a dataclass.

    Args:
        cls: the dataclass; only: which of its fields.
        names: what the command line calls a field, where it differs.
        prefix: of the parameters in Python, where two dataclasses share the name of a field.
        helps: other help texts than the dataclass's; defaults: likewise.
    """

    def __init__(
        self,
        cls: type,
        *,
        only: Collection[str] | None = None,
        names: Mapping[str, str] | None = None,
        prefix: str = "",
        helps: Mapping[str, str] | None = None,
        **defaults: Any,
    ) -> None:
        self.cls, self.prefix, self.defaults = cls, prefix, defaults
        self.names, self.helps = names or {}, helps or {}
        options = (f for f in fields(cls) if "help" in f.metadata and "part" not in f.metadata)
        self.fields = [f for f in options if only is None or f.name in only]

    def __call__(self, command: Command) -> Command:
        hints = get_type_hints(self.cls)
        for f in reversed(self.fields):
            default = self.defaults.get(f.name, None if f.default is MISSING else f.default)
            flag = self.names.get(f.name, f.name.replace("_", "-"))
            how = _kind(hints[f.name], default, self.helps.get(f.name, f.metadata["help"]))
            flags = f"--{flag}/--no-{flag}" if hints[f.name] is bool else f"--{flag}"
            command = click.option(flags, self.prefix + f.name, **how)(command)
        return command

    def given(self, values: dict[str, Any], own: bool = True) -> dict[str, Any]:
        """The options that a person set, by field; all of them are taken out of the values.

        `own` counts a person's own defaults (`adte.cli.config`) too.
        """
        found = {f.name: values.pop(self.prefix + f.name) for f in self.fields}
        return {k: v for k, v in found.items() if was_given(self.prefix + k, own)}


def was_given(name: str, own: bool = True) -> bool:
    """Whether a parameter of the running verb was set by a person, and is not the verb's default.

    `own` counts a person's own defaults too.
    """
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT) and (
        own or source != ParameterSource.DEFAULT_MAP
    )


def _kind(hint: Any, default: Any, text: str) -> dict[str, Any]:
    """The arguments of click for an option."""
    how: dict[str, Any] = {"help": f"{text[0].upper()}{text[1:]}.", "default": default}
    kinds = [k for k in (get_args(hint) or (hint,)) if k is not type(None)]
    if (known := choices(hint)) is not None:
        how["type"] = click.Choice(known)
    elif get_origin(hint) is not None and isinstance(default, tuple):
        how.update(multiple=True, metavar="TEXT")
    elif kinds[0] is float:
        how["type"] = FINITE
    elif kinds[0] is int:
        how["type"] = int
    elif kinds[0] is not bool:
        how["type"] = str
    how["show_default"] = default is True if hint is bool else default not in (None, "", ())
    return how


class Engine(Section):
    """`--engine`, and the options of the cluster, for verbs that a cluster can do.

    Args:
        fields: of `ClusterOptions`, those that the verb uses beside the address.
        helps: other help texts than theirs.
    """

    def __init__(self, *fields: str, **helps: str) -> None:
        names = {"address": "cluster", **{name: f"cluster-{name}" for name in fields}}
        self.cluster = OptionsOf(
            ClusterOptions, only=names, prefix="cluster_", names=names, helps=helps
        )
        engine = click.option(
            "--engine", default="local", type=click.Choice(["local", "ray"]), show_default=True,
            help="Run on this machine, or on a Ray cluster with the same results.",
        )  # fmt: skip
        super().__init__("Engine", engine, self.cluster)

    def take(self, values: dict[str, Any]) -> ClusterOptions | None:
        """The cluster that was asked for, or None; taken out of the values."""
        engine, given = values.pop("engine"), self.cluster.given(values)
        if engine == "ray":
            return ClusterOptions(**given)
        if given:
            flag = self.cluster.names.get(next(iter(given)), "")
            raise InputError(f"--{flag} is for a cluster; give --engine ray too, or leave it out")
        return None
