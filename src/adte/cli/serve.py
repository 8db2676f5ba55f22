"""`serve` and `state`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import click

from adte.cli._group import JSON, main
from adte.cli._options import Engine, OptionsOf, Section
from adte.cli._outputs import forced
from adte.cluster.connect import ClusterOptions
from adte.core.errors import InputError, MissingExtra
from adte.core.loading import DEFAULT_MODEL, Loading
from adte.core.options import option
from adte.files import console
from adte.files.claims import Target, claim
from adte.serve.limits import Limits, Tuning
from adte.serve.log import FORMATS, log, logged

ADDRESS = Section(
    "Address and tokens",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", default=8017, show_default=True, type=click.IntRange(0, 65535),
                 help="Port to listen on; 0 takes any free one."),
    click.option("--tokens/--no-tokens", default=None,
                 help="Require tokens from clients.  [default: yes, unless --host is a loopback "
                 "address and no administrator's token is given]"),
    click.option("--token-file", metavar="FILE",
                 help="File with the administrator's token, at least 16 characters.  [default: "
                 "the environment variable ADTE_ADMIN_TOKEN]"),
    click.option("--allow-host", "hosts", multiple=True, metavar="NAME",
                 help="Without tokens, also accept requests to this machine by the name NAME; may "
                 "be repeated."),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Served(Loading):
    """The model of all streams, and how it is loaded."""

    model: str | None = option(None, "model that all streams use; `adte models` lists them")


MODEL = OptionsOf(Served, model=DEFAULT_MODEL)
STATE = Section(
    "State",
    click.option("--state", "folder", required=True, metavar="DIR",
                 help="Folder that holds the state of all streams."),
    OptionsOf(Tuning, only=("snapshot", "disk")),
)  # fmt: skip
SPEED = Section("Speed", OptionsOf(Tuning, only=("workers", "window", "drain")))
LOG = Section(
    "Log",
    click.option("--log-format", default="text", type=click.Choice(FORMATS), show_default=True,
                 help="Log to standard error as text, or as JSON with one object per line, and "
                 "one line for each request."),
)  # fmt: skip
LIMITS = OptionsOf(Limits)
KEPT = OptionsOf(
    Served, helps={"model": "model that the streams use; DIR records it, and refuses another"}
)


def _fastapi() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "fastapi", "serve", "the service") from error


ENGINE = Engine("workers", "gpus", workers="number of workers that load the model; 1 by default")


@main.command()
@ADDRESS
@STATE
@Section("Model", MODEL)
@SPEED
@Section("Limits", LIMITS)
@LOG
@ENGINE
def serve(**o: Any) -> None:
    """Serve a classifier over HTTP: images and class names in, labels out, better by the hour.

    What each stream has learned is kept in --state DIR, and survives restarts and crashes. There is
    a web page at `/`, and a description of the API at `/openapi.json`. With --engine ray,
    --cluster-workers replicas of the model encode the images, and one process keeps the streams.
    """
    with logged(o["log_format"]):
        try:
            answer = _opened(o)
        except KeyboardInterrupt:  # or SIGTERM
            _say(o["log_format"])("ended while it was being loaded")
        else:
            answer()


def _opened(o: dict[str, Any]) -> Callable[[], None]:
    """The call that serves until a signal comes. To get it takes seconds: torch is imported."""
    _fastapi()
    from adte.models.loading import load_with
    from adte.serve.access import Access, is_loopback
    from adte.serve.run import admin_token, listen
    from adte.serve.run import serve as answer
    from adte.serve.service import Service

    tuning = Tuning(**{f.name: o[f.name] for f in fields(Tuning)})
    cluster = ENGINE.take(o)
    if cluster is not None and o["log_format"] != "text":
        raise InputError("--log-format is for one machine, Ray has logs of its own; set "
                         "RAY_SERVE_LOG_ENCODING=JSON for them")  # fmt: skip
    limits = Limits(**{f.name: o[f.name] for f in LIMITS.fields})
    local = is_loopback(o["host"])
    token = admin_token(o["token_file"]) if o["tokens"] is not False else None
    required = (not local or token is not None) if o["tokens"] is None else o["tokens"]
    if o["token_file"] is not None and not required:
        raise InputError("--no-tokens and --token-file contradict each other; give one of them")
    if not local and not required:
        raise InputError(
            f"{o['host']} can be reached from outside, where tokens are needed; leave --no-tokens "
            "out or listen on 127.0.0.1"
        )
    access = Access(token, required, (o["host"], *o["hosts"]))
    where = listen(o["host"], o["port"])
    if cluster is not None:
        with where:  # that it is free is all that matters here
            port = where.getsockname()[1]
        return _opened_far(o, cluster, port, limits=limits, access=access, **asdict(tuning))

    def load() -> Service:
        model = load_with(Loading.among(o), o["model"]).eval()
        model.require({"text tower", "class weights"}, by="the service")
        return Service(o["folder"], model, limits=limits, access=access, **asdict(tuning))

    def answer_there() -> None:
        with where:
            answer(load, where, _say(o["log_format"]), o["drain"], access)

    return answer_there


def _say(form: str) -> Callable[[str], None]:
    return log.info if form == "json" else partial(click.echo, err=True)


def _opened_far(
    o: dict[str, Any], cluster: ClusterOptions, port: int, **settings: Any
) -> Callable[[], None]:
    """The same on a Ray cluster."""
    from adte.cluster.deploy import answer, application
    from adte.cluster.worker import Tower
    from adte.models.loading import load_with

    how = Loading.among(o)
    model = load_with(replace(how, device=None, runtime="auto"), o["model"]).eval()
    model.require({"text tower", "class weights"}, by="the service")
    tower = Tower.of(model, how)
    app = application(tower, o["folder"], cluster.workers or 1, cluster.gpus, **settings)
    return partial(answer, app, o["host"], port, _say("text"), cluster, o["drain"])


ACTIONS = {"list": 0, "verify": 0, "backup": 1, "export": 2, "delete": 1, "prune": 0}  # their words


@main.command()
@click.argument("folder", metavar="DIR|FILE")
@click.argument("action", type=click.Choice(list(ACTIONS)), default="list")
@click.argument("words", nargs=-1, metavar="[STREAM] [FILE]")
@KEPT
@JSON
def state(folder: str, action: str, words: tuple[str, ...], json_to: str | None, **o: Any) -> None:
    """Manage the state that a service (`adte serve --state DIR`) keeps in DIR, or show what a state
    file of `predict` or `learn` holds.

    \b
    adte state FILE                     show classes, model, images seen, bias and shares
    adte state DIR                      list the streams
    adte state DIR verify               check every page, snapshot and event
    adte state DIR backup FILE          copy the database, even while the server runs
    adte state DIR export STREAM FILE   write the state of a stream to a file
    adte state DIR delete STREAM        delete a stream
    adte state DIR prune                delete old answers and history, free the space

    Stop the server before `delete` and `prune`; it has a route of its own for the first, and one
    that imports a state. `export` needs the model that the streams were learned with; if it is not
    found, say where its weights are with --weights.
    """
    from adte.serve import admin

    if os.path.isfile(folder):
        return _show_file(folder, [*words] if action == "list" else [action, *words], json_to)
    number = ACTIONS[action]
    if len(words) != number:
        raise InputError(
            f"`adte state DIR {action}` takes {number} more word{'s' * (number != 1)}, "
            f"{len(words)} came; see `adte state --help`"
        )
    model = KEPT.given(o)
    if model and action != "export":
        raise click.UsageError(
            f"--{next(iter(model))} is not for `adte state DIR {action}`, which needs no model; "
            "leave it out"
        )
    files = [Target("FILE", words[-1], "state")] if action in ("backup", "export") else []
    claim(
        [*files, Target("--json", json_to)], [folder], force=True
    )  # whose they are is checked apart
    if action == "list":
        return _list(admin.listing(folder), json_to)
    if action == "verify":
        return _tell_faults(admin.verify(folder), json_to)
    if action == "prune":
        done = admin.prune(folder)
        text = "{bytes_before:,} bytes before, {bytes_after:,} after".format(**done)
    elif action == "backup":
        done = admin.backup(folder, words[0])
        text = "{file}: {bytes:,} bytes".format(**done)
    elif action == "delete":
        done = admin.delete(folder, words[0])
        text = f"stream {words[0]!r} is forgotten"
    else:
        if "model" in model:
            model["name"] = model.pop("model")
        model["force"] = forced(click.get_current_context())
        done = admin.export(folder, *words, **model)
        text = "{file}: {seen} images seen".format(**done)
    if json_to:
        console.emit_json({"action": action, **done}, json_to)
    click.echo(text, err=True)


ROWS = 20  # classes of a file that are shown


def _show_file(path: str, words: list[str], json_to: str | None) -> None:
    from adte.label import state_facts

    if words:
        raise InputError(f"{words[0]!r} is for the folder of a service, and {path!r} is a file; "
                         f"`adte state {path}` alone shows it")  # fmt: skip
    claim([Target("--json", json_to)], [path], force=True)
    facts = state_facts(path)
    if not console.told(facts, json_to):
        return
    rows = facts["by_class"]
    learns = "frozen" if facts["frozen"] else "learning"
    head = [
        ["model", facts["model"]],
        ["method", facts["method"]],
        ["classes", f"{len(rows):,}"],
        ["images seen", f"{facts['seen']:,} ({learns})"],
        ["views", str(facts["views"])],
        ["templates", ", ".join(facts["templates"])],
        ["temperature", f"{facts['temperature']:.3g}"],
        ["saved by", f"adte {facts['saved_by']}"],
    ]
    console.table(path, ("", ""), head, text=True)
    shown = sorted(rows, key=lambda r: -r.get("share", 0.0))[:ROWS]
    cells = [
        [
            r["class"],
            f"{r['bias']:.2f}" if "bias" in r else "–",
            f"{r['share']:.0%}" if "share" in r else "–",
            f"{r['low']:.0%} to {r['high']:.0%}" if "share" in r else "–",
        ]
        for r in shown
    ]
    rest = f"{ROWS} of {len(rows):,} classes; --json has all. " if len(rows) > ROWS else ""
    console.table("", ("class", "bias", "share", "95 % interval"), cells,
                  f"{rest}bias: answers for the class are divided by it; 1 is none. share: of the "
                  "class among the images seen.")  # fmt: skip


def _list(rows: list[dict[str, Any]], json_to: str | None) -> None:
    if console.told({"streams": rows}, json_to):
        cells = [
            [r["id"], r["method"], *(f"{r[k]:,}" for k in ("classes", "seen", "seq", "log"))]
            for r in rows
        ]
        console.table(
            f"{len(rows)} streams", ("id", "method", "classes", "seen", "events", "log"), cells
        )


def _tell_faults(found: list[str], json_to: str | None) -> None:
    if json_to:
        console.emit_json({"faults": found}, json_to)
    for fault in found:
        click.echo(f"fault: {fault}", err=True)
    click.echo(f"{len(found)} faults", err=True)
    if found:
        raise click.exceptions.Exit(2)
