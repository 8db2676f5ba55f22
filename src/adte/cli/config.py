"""Defaults of a person's own: a file, and environment variables that win over it.

The file is `adte.toml` in the current folder, else `adte/config.toml` in the folder that
XDG_CONFIG_HOME names, else `~/.config/adte/config.toml`. One file is read, the first that exists.
`[defaults]` holds for every verb, a table such as `[predict]` for one. What stands nearer wins:

    command line > ADTE_MODEL, ADTE_DEVICE, ADTE_DTYPE > [predict] > [defaults]

The current folder may have come from elsewhere. So its file sets only the keys of `HERE`; its model
is one by name (`tiny`, `ViT-B-16/openai`), not a folder or a repository (`hf:…`), and its templates
stand in it, not in another file. The command line says in one line what it sets.

    [defaults]
    model = "ViT-B-16/openai"
    device = "cuda"

    [predict]
    views = 32
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import click
from click.core import ParameterSource

from adte.core.errors import InputError, brief, unknown

__all__ = [
    "ENVIRONMENT",
    "FOLDERS",
    "HERE",
    "KEYS",
    "VERBS",
    "Config",
    "Setting",
    "find_config",
    "load_config",
    "note_folders",
    "own_defaults",
]

VERBS = ("predict", "learn", "calibrate", "eval", "compare", "sweep", "extract", "replay", "paper",
         "study", "bench", "serve")  # fmt: skip
COUNT, INDEX, SHARE = "a whole number from 1", "a whole number from 0", "a number from 0 to 1"
AUTO = ("predict", "learn", "calibrate")  # whose views may be drawn as they are needed
KEYS = {
    "model": "a text",
    "weights": "a text",
    "device": "a text",
    "dtype": "a text",
    "method": "a text",
    "views": COUNT,
    "seed": INDEX,
    "templates": "a text or a list of texts",
    "top": COUNT,
    "min_confidence": SHARE,
    "workers": INDEX,
    "threads": COUNT,
}
HERE = ("model", "device", "dtype", "method", "views", "seed", "templates", "top",
        "min_confidence", "workers", "threads")  # fmt: skip
FOLDERS = "adte.toml"  # the file of the current folder
ENVIRONMENT = {"model": "ADTE_MODEL", "device": "ADTE_DEVICE", "dtype": "ADTE_DTYPE"}


class Setting(NamedTuple):
    """A default, and where it comes from: a file or an environment variable."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Config:
    """Defaults by verb. Made by `load_config`."""

    tables: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    environment: Mapping[str, Setting] = field(default_factory=dict)

    def settings(self, verb: str) -> dict[str, Setting]:
        """The defaults of a verb with their origins. Weights go with the model of their own table:
        a model that stands nearer does not get them."""
        merged: dict[str, Setting] = {}
        for nearer in (self.tables.get("defaults"), self.tables.get(verb), self.environment):
            if nearer and "model" in nearer:
                merged.pop("weights", None)
            merged.update(nearer or {})
        return merged

    def defaults(self, verb: str) -> dict[str, Any]:
        """The defaults of a verb."""
        return {name: setting.value for name, setting in self.settings(verb).items()}


def find_config(environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that holds a person's defaults, if there is one."""
    found = _places(os.environ if environ is None else environ)
    return next((p for p in found if os.path.lexists(p)), None)


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path(FOLDERS)
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # others are to be passed over, says the standard
        yield Path(base, "adte", "config.toml")
    elif (home := os.path.expanduser("~")) != "~":
        yield Path(home, ".config", "adte", "config.toml")


def load_config(environ: Mapping[str, str] | None = None) -> Config:
    """A person's defaults, checked: an unknown key or verb is an error that lists the known ones.

    Args:
        environ: environment variables; None takes those of the process.
    """
    environ = os.environ if environ is None else environ
    path = find_config(environ)
    variables = {
        name: Setting(value.strip(), variable)
        for name, variable in ENVIRONMENT.items()
        if (value := environ.get(variable, "")).strip()
    }
    return Config({} if path is None else _tables(path), variables)


def _tables(path: Path) -> dict[str, dict[str, Setting]]:
    said = f"the config file {str(path)!r}"
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{said} cannot be read ({error.strerror}); mend or remove it") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{said} is not UTF-8 text; save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{said} is not TOML ({reason}); mend that line") from error
    for name, table in found.items():
        if isinstance(table, dict):
            if name not in ("defaults", *VERBS):
                raise unknown(f"table in {said}", name, ("defaults", *VERBS))
        elif name in KEYS:
            raise InputError(f"in {said}, {name!r} stands outside a table; put it under [defaults]")
        else:
            raise unknown(f"key in {said}", name, KEYS)
    return {name: _checked(name, table, path, said) for name, table in found.items()}


def _checked(name: str, table: dict[str, Any], path: Path, said: str) -> dict[str, Setting]:
    for key, value in table.items():
        if key not in KEYS:
            raise unknown(f"key under [{name}] in {said}", key, KEYS)
        wanted = KEYS[key]
        if key == "views" and name in AUTO:
            wanted += ", or 'auto',"
        if not (_fits(value, KEYS[key]) or (value == "auto" and wanted != KEYS[key])):
            raise InputError(
                f"in {said}, {key} under [{name}] is {reprlib.repr(value)}; give {wanted} there"
            )
        if path == Path(FOLDERS) and not _is_harmless(key, value):
            raise InputError(
                f"in {said}, {key} under [{name}] is {reprlib.repr(value)}, which a file of the "
                "current folder may not set, for it may have come from elsewhere; put it into "
                "~/.config/adte/config.toml, or give it on the command line"
            )
    return {key: Setting(value, str(path)) for key, value in table.items()}


def _is_harmless(key: str, value: Any) -> bool:
    """Whether a stranger may set it: it names no file, no folder and no repository."""
    if key == "model":
        return ":" not in value
    if key == "templates":
        return not any(t.startswith("@") for t in ([value] if isinstance(value, str) else value))
    return key in HERE


def _fits(value: object, wanted: str) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, list):
        texts = all(isinstance(v, str) for v in value)
        return wanted == "a text or a list of texts" and bool(value) and texts
    if wanted == SHARE:
        return isinstance(value, int | float) and 0 <= value <= 1
    if wanted in (COUNT, INDEX):
        return isinstance(value, int) and value >= (wanted == COUNT)
    return isinstance(value, str)


# --------------------------------------------------------------------------- for a verb


def own_defaults(ctx: click.Context) -> dict[str, tuple[str, Setting]]:
    """Keys and defaults for the parameters of the verb that is about to run, by name of the
    parameter.
    """
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
    used = ", ".join(
        f"{key}={brief(value)}"
        for name, (key, (value, origin)) in own.items()
        if origin == FOLDERS and ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    )
    if used and not (ctx.resilient_parsing or ctx.params.get("quiet")):
        click.echo(f"note: {FOLDERS} sets {used}", err=True)
