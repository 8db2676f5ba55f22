"""`demo` and `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from adte import console
from adte.cli._group import COUNT, JSON, SEED, SET, main, read_settings, writable
from adte.errors import InputError, MissingExtra


def _classes(text: str) -> list[str]:
    """Names with commas between them, or @FILE with one a line."""
    if not text.startswith("@"):
        return [name.strip() for name in text.split(",") if name.strip()]
    path = Path(text[1:])
    if not path.is_file():
        raise InputError(
            f"the file of class names {str(path)!r} does not exist; "
            "give one name a line in a text file"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the file of class names {str(path)!r} cannot be read as text ({error}); "
            "give one name a line in a text file"
        ) from error
    return [line.strip() for line in lines if line.strip()]


@main.command()
@click.option("--out", default="adte-demo", show_default=True, help="Folder for report.html.")
@click.option("--limit", type=COUNT, help="Use only the first images.")
@click.option("--cache", metavar="FOLDER", help="Features of `tiny` instead of the bundle's.")
@JSON
def demo(out: str, limit: int | None, cache: str | None, json_to: str | None) -> None:
    """The main job: compare the methods on real photographs, and write a report.

    Replays features of 64 views of held-out photographs, made with the embedded model `tiny`, whose
    training was imbalanced in a known way. Needs no network and no labels but to score.
    """
    from adte.evaluate.cache import Cache
    from adte.evaluate.demo import length, run_demo
    from adte.evaluate.report import demo_report
    from adte.evaluate.tables import terminal_table

    replay = Cache(cache).first(limit)
    with console.progress("replaying", length() * len(replay)) as bar:
        done = run_demo(replay, lambda: bar.advance(0))  # type: ignore[arg-type]
    if json_to:
        console.emit_json(done.facts(), json_to)
    if json_to != "-":
        title = (
            f"{len(replay)} photographs, {len(replay.classes)} classes, "
            f"{replay.facts['views']['count']} views, model {replay.facts['model']}"
        )
        console.grid(terminal_table(done.rows, title))
        console.table(
            "Estimated class prior against the true training frequency",
            ("estimator", "Spearman"),
            [[e["name"], f"{e['spearman']:.3f}"] for e in done.estimators],
        )
    try:
        click.echo(f"report: {demo_report(done, out)}", err=json_to == "-")
    except MissingExtra as error:
        click.echo(f"no report: {error}", err=True)


@main.command()
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option("--classes", help="Names with commas between them, or @FILE with one name a line.")
@click.option(
    "--model", default="tiny", show_default=True, help="The model; `tiny` needs no network."
)
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@click.option("--views", default=64, show_default=True, help="Views of each image.")
@click.option(
    "--template",
    "templates",
    multiple=True,
    metavar="TEXT",
    help="Prompt with {} for the name; may be repeated.  [default: a photo of a {}.]",
)
@click.option("--seed", default=0, type=SEED, show_default=True, help="Seed of the views.")
@click.option(
    "--state",
    type=click.Path(),
    metavar="FILE",
    callback=writable,
    help="Go on from this saved state if it exists, and save it there afterwards.",
)
@click.option("--top", default=5, type=COUNT, show_default=True, help="Classes to show.")
@SET
@JSON
def predict(images: tuple[str, ...], classes: str | None, model: str, method: str, views: int,
            templates: tuple[str, ...], seed: int, state: str | None, top: int,
            settings: tuple[str, ...], json_to: str | None) -> None:  # fmt: skip
    """Label IMAGES, files or folders, as one stream.

    Each image is predicted and then learned from, so later images profit from earlier ones. Images
    that cannot be read are named at the end, and the exit code is 2; the others are labelled.
    """
    from adte.classifier import Classifier
    from adte.data.images import find_images
    from adte.prompts import SINGLE

    paths = [p for source in images for p in find_images(source)]
    if state and Path(state).exists():
        clf = Classifier.load(state)
        source = click.get_current_context().get_parameter_source
        for name, mine in (("model", clf.model.name), ("method", clf.method.name)):
            given = model if name == "model" else method
            if source(name) == ParameterSource.COMMANDLINE and given != mine:
                raise InputError(
                    f"--state {state!r} was saved with {name} {mine!r}, not {given!r}; leave "
                    f"--{name} out, or choose another state file"
                )
        if settings:
            raise InputError(
                f"--set cannot change what --state {state!r} was saved with; leave it out, or "
                "choose another state file"
            )
        if classes and _classes(classes) != clf.classes:
            raise InputError(
                f"--state {state!r} was saved for other classes than --classes names; "
                "leave --classes out, or choose another state file"
            )
    elif classes is None:
        raise InputError("no classes were given; name them as in --classes 'cat, dog, car'")
    else:
        clf = Classifier(
            model,
            _classes(classes),
            method,
            templates=templates or SINGLE,
            views=views,
            seed=seed,
            **read_settings(method, settings),
        )
    rows: list[dict[str, Any]] = []
    unread: list[str] = []
    try:
        with console.progress("predicting", len(paths), show=len(paths) > 1) as bar:
            for path in paths:
                try:
                    p = clf.predict(path)
                except InputError as error:
                    unread.append(str(error))
                    continue
                finally:
                    bar.advance(bar.task_ids[0])
                named = [(clf.classes[i], x) for i, x in p.top(top)]
                best = [{"class": c, "probability": x} for c, x in named]
                rows.append({"image": str(path), "label": p.label, "index": p.index,
                             "confidence": p.confidence, "top": best,
                             "kept": [] if p.kept is None else p.kept.tolist()})  # fmt: skip
                if json_to != "-":
                    console.bars(str(path), named)
    finally:  # interrupted or not, what was learned and said is kept
        if state and rows:
            clf.save(state)
        if json_to and rows:
            facts = {"model": clf.model.name, "method": clf.method.name, "rows": rows}
            console.emit_json(facts, json_to)
    if unread:
        raise InputError(
            f"{len(unread)} of {len(paths)} images could not be labelled, the first: {unread[0]}"
        )
