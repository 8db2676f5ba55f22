"""`predict`, `learn`, `merge`, `calibrate`, `look` and `undo`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from adte.cli._group import AGAIN, COUNT, JSON, SET, main, read_settings
from adte.cli._options import FINITE, Count, Engine, OptionsOf, Section, was_given
from adte.cli._outputs import check_writable, writable
from adte.cli._prompts import ALLOW_MISSING, DESCRIPTIONS, check_missing
from adte.core.errors import InputError
from adte.core.loading import DEFAULT_MODEL, EMBEDDED, Loading
from adte.core.schema import VIEWS, WORD
from adte.files import console

CLASSIFIER = Section(
    "Classes, model and method",
    click.option("--classes", metavar="NAMES",
                 help='Class names, separated by commas as in "cat, dog, car", or @FILE with one '
                 "name per line; lines that start with # are ignored. A model of fixed classes "
                 "(timm:NAME) takes all of its own without."),
    click.option("--model", default=DEFAULT_MODEL, show_default=True,
                 help="Model to classify with: one that `adte models` lists, hf:ID or timm:NAME. "
                 "`lite` needs no network."),
    OptionsOf(Loading),
    click.option("--template", "templates", multiple=True, metavar="SET|TEXT|@FILE",
                 help="Prompt template: the name of a set (single, seven, eighty, …), a text with "
                 "{} for the class name (repeat for more), or @FILE with one text per line.  "
                 "[default: a photo of a {}.]"),
    DESCRIPTIONS,
    ALLOW_MISSING,
    click.option("--method", default="tilt", show_default=True,
                 help="Adaptation method; `adte methods` lists them."),
    SET,
    click.option("--views", default=64, type=Count(1, VIEWS), show_default=True,
                 metavar="N|auto", help="Views per image: the image itself and random crops of it. "
                 "auto draws up to 64, and stops once the answer is settled."),
    click.option("--seed", default=0, type=click.IntRange(0, WORD - 1), show_default=True,
                 metavar="INTEGER", help="Seed of the random crops."),
)  # fmt: skip
SHOWN = Section(
    "What is shown",
    click.option("--top", default=5, type=COUNT, show_default=True,
                 help="Number of classes to report per image, the most probable first."),
    click.option("--min-confidence", default=0.0, type=FINITE, metavar="0…1",
                 help="Give no label to images below this confidence; their rows keep the best "
                 "guess.  [default: 0]"),
    click.option("--bars/--no-bars", default=None,
                 help="Show the probabilities of each image as bars.  [default: for a single image "
                 "only]"),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors and the summary."),
    click.option("-v", "--verbose", is_flag=True,
                 help="Also print the best classes of each image."),
)  # fmt: skip
OUTPUTS = Section(
    "Outputs",
    click.option("--out", metavar="FILE",
                 help="Write a row per image to FILE (.csv, .jsonl, .json or .parquet), or to "
                 "standard output with -. After an interruption the same command continues."),
    JSON,
    click.option("--state", metavar="FILE",
                 help="File for what is learned: loaded if it exists, then updated.  [default: "
                 "OUT.adte, beside --out]"),
    click.option("--freeze", is_flag=True,
                 help="Predict without learning; --state is read, not written. (OUT.adte is: it "
                 "says which rows are done.)"),
    click.option("--start", metavar="FILE",
                 help="State to start from if --state does not exist yet, such as one made by "
                 "`adte learn`: what it knows about the model, not how often each class came. "
                 "It is read, not written."),
    click.option("--force", is_flag=True,
                 help="Overwrite files that adte did not write, and start --out over."),
    click.option("--sort-into", metavar="FOLDER",
                 help="Sort the images into one folder per label below FOLDER; `adte undo "
                 "FOLDER/undo.csv` reverses it."),
    click.option("--sort", type=click.Choice(["copy", "link", "move"]), default="copy",
                 show_default=True, help="Copy the images when sorting, link to them, or move "
                 "them."),
    click.option("--wait", default=60.0, type=FINITE, metavar="SECONDS", show_default=True,
                 help="How long to wait while another process uses the state."),
)  # fmt: skip
WORKERS = click.option(
    "--workers", type=click.IntRange(0, 256),
    help="Threads that decode images in advance.  [default: one per CPU core but one, at most 8]",
)  # fmt: skip
SPEED = Section(
    "Speed",
    click.option("--batch", type=COUNT, help="Images to process at a time; it does not change the "
                 "labels.  [default: 16 on CUDA, else 1]"),
    WORKERS,
)  # fmt: skip
ENGINE = Engine("workers", "gpus", "chunk")
ORDER = click.option(
    "--order",
    type=click.Choice(["shuffled", "listed"]),
    default="shuffled",
    show_default=True,
    help="Order of the work: shuffled, by the names of the images and --seed, as images that come "
    "class after class cost accuracy; or as they are listed. Rows have the order of the listing "
    "either way. Pipes, tar archives and Parquet files are read as they come.",
)
FILES_FROM = click.option(
    "--files-from",
    metavar="LIST",
    help="Read names of further images from LIST, one per line, or from standard input with -.",
)


def _inputs(o: dict[str, Any]) -> list[str]:
    from adte.files.lists import read_list

    return [*o["images"], *(read_list(o["files_from"]) if o["files_from"] is not None else [])]


@main.command()
@click.argument("images", nargs=-1)
@FILES_FROM
@ORDER
@CLASSIFIER
@SHOWN
@OUTPUTS
@SPEED
@ENGINE
def predict(**o: Any) -> None:
    """Label IMAGES: files, folders, .zip and .tar archives, Parquet files and object stores
    (s3://…), or - for standard input.

    The images are taken as one stream: each is labelled and then learned from, so later images
    profit from earlier ones. Folders, files and .zip archives are worked on in a shuffled order
    (--order), and rows written in the listing's. An image that cannot be read is reported with the
    reason, the others are still labelled, and the exit code is 2. You can set defaults of your own
    in ~/.config/adte/config.toml, or in the environment variables ADTE_MODEL, ADTE_DEVICE and
    ADTE_DTYPE.
    """
    if o["quiet"] and o["verbose"]:
        raise InputError("-q and -v contradict each other; give one of them")
    if o["sort_into"] is None and was_given("sort"):
        raise InputError("--sort needs --sort-into, the folder to sort into")
    cluster, inputs = ENGINE.take(o), _inputs(o)
    with console.notes(not o["quiet"]):
        wanted = _wanted(o, inputs)
    from adte.cli._screen import Screen
    from adte.files.devices import is_standard_output
    from adte.files.journal import is_stream
    from adte.label import Job

    names = ("out", "json_to", "state", "start", "freeze", "force", "top", "min_confidence",
             "batch", "workers", "sort_into", "sort", "wait", "order")  # fmt: skip
    data = any(p is not None and is_standard_output(p) for p in (o["out"], o["json_to"]))
    screen = Screen(o["quiet"], o["verbose"], o["bars"], o["top"], data)
    asked = {name: o[name] for name in names}
    with console.notes(not o["quiet"]):
        if cluster is None:
            job = Job(inputs, wanted, **asked)
        else:
            from adte.cluster.label import ClusterJob

            job = ClusterJob(inputs, wanted, **asked, cluster=cluster)
        _run(job, screen)
    if o["out"] and not (o["quiet"] or is_stream(o["out"])) and console.err.is_terminal:
        console.say(f"see them on one page: adte look {shlex.quote(o['out'])}")


def _run(job: Any, screen: Any) -> None:
    """Run a job and sum it up; an interrupt says what the same command would do."""
    from adte.files.journal import is_stream
    from adte.label.report import counted

    try:
        job.run(screen)
    except KeyboardInterrupt:
        keeps_rows = job.out is not None and not is_stream(job.out)
        if job.state is not None and not (job.freeze or keeps_rows) and job.report.labelled:
            first = counted(job.report.labelled, "image")
            click.get_current_context().meta[AGAIN] = (
                f"the same command would learn the first {first} again; give those that are left, "
                "or another --state"
            )
        raise
    finally:
        screen.close(job.report)
    if not job.report.is_good:
        raise click.exceptions.Exit(2)


def _wanted(o: dict[str, Any], inputs: Sequence[str] = ()) -> Any:
    """The classifier that was asked for, and what of it on the command line.

    What can be refused without torch, which takes seconds to import, is refused first.
    """
    from adte.core.templates import SINGLE
    from adte.files.inputs import check_there
    from adte.files.lists import read_classes, read_templates

    check_missing(o["descriptions"], o["allow_missing"])
    check_there(inputs, o["classes"] or "")
    classes = None if o["classes"] is None else read_classes(o["classes"])
    templates = tuple(read_templates(o["templates"])) or SINGLE
    if o["weights"] == "random" and o["model"] not in EMBEDDED:  # which refuse them
        warnings.warn("with random weights labels are a matter of chance; they serve to measure "
                      "speed", stacklevel=2)  # fmt: skip
    from adte.label import Wanted

    names = ("classes", "model", "method", "templates", "descriptions", "views", "seed", "weights",
             "tokenizer")  # fmt: skip
    explicit = {name for name in names if was_given(name, own=False)}
    if o["settings"]:
        explicit.add("options")
    how = Loading.among(o)
    if "model" in explicit:  # files of a config belong to its own model
        how = how.for_another(explicit)
    return Wanted(
        classes=classes,
        model=o["model"],
        method=o["method"],
        templates=templates,
        descriptions=o["descriptions"],
        allow_missing=o["allow_missing"],
        views=o["views"],
        seed=o["seed"],
        options=read_settings(o["method"], o["settings"]) if o["settings"] else {},
        **asdict(how),
        explicit=frozenset(explicit),
    )


@main.command()
@click.argument("images", nargs=-1)
@FILES_FROM
@click.option(
    "--state",
    metavar="FILE",
    required=True,
    help="File to save what is learned in. If it exists, learning continues from it.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that adte did not write.")
@ORDER
@CLASSIFIER
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the summary.")
@SPEED
def learn(**o: Any) -> None:
    """Learn from unlabelled IMAGES, and save what was learned in a state file to start from.

    With a state that has seen a few hundred images of the kind to come, labels are better from the
    first image on. Start from it with `adte predict --start FILE`, or use it unchanged with
    `adte predict --state FILE --freeze`. You can ship it with a product. An image that is given
    twice is learned from twice.
    """
    inputs = _inputs(o)
    with console.notes(not o["quiet"]):
        wanted = _wanted(o, inputs)
    from adte.cli._screen import Screen
    from adte.label import Job

    screen = Screen(o["quiet"], False, None, 1, data=False, lines=False)
    with console.notes(not o["quiet"]):
        asked = {name: o[name] for name in ("state", "force", "batch", "workers", "order")}
        job = Job(inputs, wanted, learn=True, **asked)
        job.report.verb = "learned"
        _run(job, screen)


@main.command()
@click.argument("states", metavar="STATE...", nargs=-1, required=True)
@click.option("--out", metavar="FILE", required=True, help="File to write the merged state to.")
@click.option(
    "--start",
    metavar="FILE",
    help="State that the STATEs began from (`adte predict --start`), or are copies of that went on "
    "learning, so that it counts once.",
)
@click.option("--force", is_flag=True, help="Overwrite --out if it exists.")
def merge(states: tuple[str, ...], out: str, start: str | None, force: bool) -> None:
    """Merge several state files into one, such as those of `learn` or `predict` runs on several
    machines.

    All must come from the same classifier: the same classes, model, prompts, views, method and
    options. The model itself is not needed. Start from the result with `adte predict --start FILE`.
    If several of them began from the same state, or went on from copies of it, name it with
    --start: it is part of each of them, and would count several times.
    """
    from adte.label import merge_states
    from adte.label.report import counted

    with console.notes():
        seen = merge_states(states, out, force, start)
    click.echo(f"wrote {out}: {counted(len(states), 'state')}, {counted(seen, 'image')}", err=True)


@main.command()
@click.argument("data", metavar="NAME:PATH")
@click.option(
    "--state",
    metavar="FILE",
    required=True,
    help="State file to calibrate; it is created if it does not exist.",
)
@click.option("--limit", type=COUNT, help="Use only this many of the images, drawn at random.")
@click.option("--force", is_flag=True, help="Overwrite files that adte did not write.")
@CLASSIFIER
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the summary.")
@WORKERS
@JSON
def calibrate(**o: Any) -> None:
    """Calibrate confidences on some labelled images: of labels given at 80 %, about 80 % are right.

    NAME:PATH is a data set, such as folder:labelled with one folder per class. Fifty images of the
    kind to come are enough, a few hundred are better. The result is one temperature, saved in
    --state; `adte predict` with that --state or --start applies it, so that --min-confidence can
    be relied on. Labels do not change, and nothing else is learned from the images.
    """
    from adte.files.rows import escape_name
    from adte.label import Calibrating

    with console.notes(not o["quiet"]):
        asked = {name: o[name] for name in ("limit", "workers", "json_to", "force")}
        job = Calibrating(o["data"], _wanted(o), o["state"], **asked)
        with console.progress("reading", len(job.examples), not o["quiet"]) as bar:
            found, unread = job.run(bar.advance)
    for _, reason in unread:
        click.echo(f"error: {reason}", err=True)
    if o["json_to"] is not None:
        failed = [{"path": escape_name(u.source), "error": u.reason} for u in unread]
        rows = [t._asdict() for t in found.thresholds]
        facts = {"state": o["state"], **found._asdict(), "thresholds": rows, "unread": failed}
        console.emit_json(facts, o["json_to"])
    if o["json_to"] != "-":
        click.echo(found)
        console.table(
            "",
            ["--min-confidence", "labelled", "of them wrong"],
            [[f"{t.min_confidence:g}", f"{t.labelled:.0%}", "–" if t.wrong is None
              else f"{t.wrong:.0%}"] for t in found.thresholds],
        )  # fmt: skip
    click.echo(f"wrote {o['state']}", err=True)
    if unread:
        raise click.exceptions.Exit(2)


@main.command()
@click.argument("labels", metavar="LABELS")
@click.option("--out", metavar="FILE.html", callback=writable,
              help="Page to write.  [default: beside LABELS, as in labels.html]")  # fmt: skip
@click.option("--state", metavar="FILE",
              help="State file of LABELS, if it is not the one beside them.")  # fmt: skip
@click.option("--images", default=500, type=COUNT, show_default=True,
              help="Most pictures to show; the least sure of each label come first.")  # fmt: skip
@click.option("--check", default=50, type=click.IntRange(0, 10_000), show_default=True,
              help="Number of images to check by eye, drawn at random.")  # fmt: skip
@click.option("--side", default=160, type=click.IntRange(16, 1024), show_default=True,
              help="Longer side of a picture, in pixels.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the name of the page.")
def look(quiet: bool, **o: Any) -> None:
    """Show the labels that `adte predict --out LABELS` wrote, on one HTML page with small pictures.

    Images are grouped by label, the least sure first. A random sample of them can be checked by
    eye: the page counts how many labels are right, and saves your answers as checked.csv, from
    which `adte calibrate csv:checked.csv --state LABELS.adte` calibrates the confidences. The page
    needs no network and no server. No label is changed, and nothing is learned.
    """
    from adte.label import Look

    with console.notes(not quiet):
        asked = Look(**o)
        check_writable(click.get_current_context(), "--out", asked.page)
        with console.progress("reading", len(asked.shown), not quiet) as bar:
            done = asked.run(bar.advance)
    if done.missing:
        some = "1 image has" if done.missing == 1 else f"{done.missing} images have"
        click.echo(f"note: {some} no picture: gone, unreadable or not on this machine", err=True)
    if done.passed:
        click.echo(
            f"note: of the images drawn to check {done.passed} could not be: in archives, gone, or "
            "of names that a table cannot hold (rename them); the estimate is of the others",
            err=True,
        )
    if not quiet:
        said = f"{done.shown:,} of {done.images:,} images shown, {done.check} to check"
        click.echo(f"wrote {done.page}: {said}", err=True)
    console.out.print(done.page, markup=False, soft_wrap=True)


@main.command()
@click.argument("listing", metavar="FOLDER/undo.csv")
@click.option("--root", metavar="FOLDER",
              help="Let images be moved back below FOLDER, though it cannot be seen that you moved "
              "them on this machine.")  # fmt: skip
def undo(listing: str, root: str | None) -> None:
    """Undo what `predict --sort-into FOLDER` did.

    Copies and links are removed, and moved images go back. A file that has changed since then is
    left where it is and reported, as is a moved one that is gone, and the exit code is 2. A list
    that you did not make on this machine moves images only below --root.
    """
    from adte.label import undo as take_back
    from adte.label.report import counted

    with console.notes():
        done = take_back(listing, root)
    for reason in done.left:
        click.echo(f"error: {reason}", err=True)
    back, left = counted(done.images, "image"), len(done.left)
    click.echo(f"{back} taken back, {left} left as they are", err=True)
    if done.left:
        raise click.exceptions.Exit(2)
