"""The command group, and the options that verbs share."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from traceback import walk_tb
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from adte import _start
from adte._version import __version__
from adte.cli._methods import check_names
from adte.cli._outputs import add_force, writable
from adte.cli._verbs import MODULES, VERBS
from adte.cli.config import note_folders, own_defaults
from adte.core.errors import AdteError, InputError, brief, unknown
from adte.files.whole import reason

AGAIN = "adte.again"  # in a context: what the same command would do after an interrupt
PATHS = {  # errors that say something of a path, and nothing of a disk or a reader
    errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR,
    errno.ENOENT, errno.EROFS,
}  # fmt: skip
COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0, max=2**63 - 1)  # what every log and file can hold
PARTS = ("views.", "stream.")  # how names of --set begin that are no option of the method


JSON = click.option(
    "--json", "json_to", default=None, metavar="[FILE.json]", callback=writable,
    help="Write the results as JSON to FILE.json, or to standard output if no file is named.",
)  # fmt: skip
RARE = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="Set a rare option of the views (scale, ratio, enlarge, flip, interpolation, augmix, "
    "seed) or of the stream (imbalance, ratio, delta, labels, seed), as in views.flip=0 or "
    "stream.imbalance=zipf; repeat for more.",
)  # fmt: skip
SET = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="Set an option of the method, such as smoothing=20; repeat for more. `adte methods NAME` "
    "lists the options.",
)  # fmt: skip


class Verb(click.Command):
    """A command whose `--json` takes the next word only if that is a JSON file or a device.

    So an option never swallows an argument: `--json p1.jpg p2.jpg` prints the JSON and leaves the
    photographs alone. If it writes files it has `--force`, too.
    """

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        add_force(self.params)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        out: list[str] = []
        for i, word in enumerate(args):
            if word == "--":
                out += args[i:]
                break
            out.append(word)
            if word == "--json":
                follows = args[i + 1] if i + 1 < len(args) else ""
                takes = follows == "-" or follows.endswith(".json") or follows.startswith("/dev/")
                if not takes:
                    self._check_follows(follows)
                    out[-1] = "--json=-"
        own = own_defaults(ctx)
        if ctx.info_name in ("paper", "study") and not _names_images(out):
            own = {}  # what was encoded before has its own model and views
        values = {name: setting.value for name, (_, setting) in own.items()}
        ctx.default_map = {**values, **(ctx.default_map or {})}
        rest = super().parse_args(ctx, out)
        note_folders(ctx, own)
        if "method" in ctx.params and not ctx.resilient_parsing:
            names = split_settings(ctx.params.get("settings", ()))
            if "view_count" in ctx.params:  # rare options of views and stream are by --set, too
                names = {n: v for n, v in names.items() if not n.startswith(PARTS)}
            check_names(ctx.params["method"], names)
        return rest

    def _check_follows(self, word: str) -> None:
        """Refuse a name for the JSON that would be taken for an image."""
        if not {"images", "json_to"} <= {p.name for p in self.params}:
            return
        if word and not word.startswith("-") and "://" not in word and not os.path.lexists(word):
            raise InputError(
                f"--json {word!r} is neither a file for JSON, which ends in .json, nor an image "
                "that is there; write it as in --json facts.json"
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options under the headings that they have, see `Section`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _names_images(words: Sequence[str]) -> bool:
    """Whether `--data` names images, and no cache."""
    after = zip(words, [*words[1:], ""], strict=True)
    named = [b if a == "--data" else a.removeprefix("--data=") for a, b in after
             if a == "--data" or a.startswith("--data=")]  # fmt: skip
    return bool(named) and not any(name.startswith("cache:") for name in named)


class Verbs(click.Group):
    """A group of such commands."""

    command_class = Verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            raise unknown("command", args[0], names)
        return super().resolve_command(ctx, args)


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM); it ends as it would on an interrupt."""


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Within the block SIGTERM is an exception, so that what is being written is finished or left
    out, and temporary files go.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one does not wait
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_unwritten(error: OSError) -> NoReturn:
    """End where standard output takes no more: with an error if the disk is full, silently if the
    reader left.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE):
        raise error
    with suppress(OSError, ValueError):  # what it still holds would fail again when Python ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if error.errno == errno.EPIPE:
        sys.exit(1)
    if isinstance(ended := error.__context__, SystemExit) and ended.code:
        sys.exit(ended.code)  # its error is on the screen
    name = "standard output" if error.filename is None else repr(error.filename)
    click.echo(f"error: cannot write {name}: {reason(error)}", err=True)
    sys.exit(2)


class Main(Verbs):
    """Bad input ends in one sentence and exit code 2, not in a traceback."""

    group_class = Verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A verb, whose module is imported now, with all that it needs."""
        if name in MODULES:
            import_module(f"adte.cli.{MODULES[name]}")
        _start.done()
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, MODULES))
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line.help) for name, line in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        lines = (pair for verbs in VERBS.values() for pair in verbs.items())
        found = [CompletionItem(n, help=x.help) for n, x in lines if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, **extra: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a letter that the terminal lacks stops nothing
                stream.reconfigure(errors="backslashreplace")
        with _orderly_end():
            try:
                try:
                    return super().main(*args, **extra)
                finally:
                    if sys.stdout is not None:
                        sys.stdout.flush()
            except OSError as error:
                _end_unwritten(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AdteError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except OSError as error:
            if error.filename is None or error.errno not in PATHS:
                raise
            click.echo(
                f"error: cannot use {brief(error.filename)}: {error.strerror}; check the "
                "path and its permissions",
                err=True,
            )
            ctx.exit(2)
        except KeyboardInterrupt as error:
            how, code = (
                ("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)
            )
            goes_on = "the same command continues from them where it can"
            again = ctx.meta.get(AGAIN, goes_on)
            started = not _is_importing(error)
            rest = f"; the files written so far are complete, and {again}" if started else ""
            click.echo(how + rest, err=True)
            ctx.exit(code)


def _is_importing(error: BaseException) -> bool:
    """Whether it came while a module was being imported, as torch is for seconds at the start."""
    return any(frame.f_code.co_name == "<module>" for frame, _ in walk_tb(error.__traceback__))


EPILOG = """
\b
To complete commands and options with the Tab key, tell your shell once:
  bash  eval "$(_ADTE_COMPLETE=bash_source adte)"     in ~/.bashrc
  zsh   eval "$(_ADTE_COMPLETE=zsh_source adte)"      in ~/.zshrc
  fish  _ADTE_COMPLETE=fish_source adte | source      in ~/.config/fish/config.fish
"""


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="adte")
def main() -> None:
    """Make a vision-language classifier better while it is used, without labels or training.

    Start with `adte demo`, then `adte predict photo.jpg --classes "cat, dog, car"`.
    """


def split_settings(texts: Sequence[str]) -> dict[str, str]:
    """The names and values of `--set`."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise InputError(f"--set {text!r} is not NAME=VALUE; write it as in smoothing=5")
        if name in pairs:
            raise InputError(f"--set {name} was given twice; give it once")
        pairs[name] = value
    return pairs


def read_settings(method: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """The options of `--set`, typed; an unknown name or a bad value is an error."""
    from adte.core.options import parse, unread
    from adte.methods import create_method, method_info

    options = parse(method_info(method).cls, split_settings(texts))
    made = create_method(method, **options)
    idle = unread(made, options)
    if not made.stateful:
        idle |= {name: "adjust=before" for name in options if name.startswith("prior.")}
    for name, mend in idle.items():
        text = f"{name} has no effect on {method} with these options; it needs {mend}"
        click.echo(f"note: {text}", err=True)
    return options
