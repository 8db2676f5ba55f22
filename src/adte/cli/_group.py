"""The command group, and the options that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adte import __version__
from adte.errors import AdteError, InputError

COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0)


def writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a file whose folder is not there, before any work is done for it."""
    if value not in (None, "-") and not Path(str(value)).absolute().parent.is_dir():
        folder = str(Path(str(value)).parent)
        raise InputError(
            f"{param.opts[0]} {value}: the folder {folder!r} does not exist; make it first"
        )
    return value


JSON = click.option(
    "--json", "json_to", is_flag=False, flag_value="-", default=None, metavar="[FILE]",
    callback=writable,
    help="Write the same facts as JSON to FILE, or to standard output if no file is given.",
)  # fmt: skip
SET = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="Option of the method, as in beta=0.8; may be repeated. `adte methods NAME` lists them.",
)  # fmt: skip


class Main(click.Group):
    """Bad input ends in one sentence and exit code 2, not in a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AdteError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("interrupted; what was written is whole, and the same command goes on "
                       "from it where it can", err=True)  # fmt: skip
            ctx.exit(130)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="adte")
def main() -> None:
    """Make a vision-language classifier better while it is used, without labels or training.

    Start with `adte demo`, then `adte predict photo.jpg --classes "cat, dog, car"`.
    """


def read_settings(method: str, texts: tuple[str, ...]) -> dict[str, Any]:
    from adte.methods import method_info
    from adte.options import parse

    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r} has no '='; write it as NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return parse(method_info(method).cls, pairs)
