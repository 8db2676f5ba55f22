"""`methods`, `models`, `datasets` and `data`: what there is."""

from __future__ import annotations

from typing import Any

import click

from adte.cli._group import COUNT, JSON, Verbs, main
from adte.core.errors import InputError, MissingExtra
from adte.files import console


@main.command()
@click.argument("name", required=False)
@JSON
def methods(name: str | None, json_to: str | None) -> None:
    """List the methods, or the options of the method NAME."""
    from adte.methods import list_methods, method_info

    rows = [method_info(n).row() for n in ([name] if name else list_methods())]
    if not console.told(rows, json_to):
        return
    if name:
        return _one_method(rows[0])
    facts = [[r["name"], ", ".join(r["needs"]), "yes" if r["stateful"] else "no",
              _counts(r), r["summary"]] for r in rows]  # fmt: skip
    console.table(
        "Methods",
        ("name", "needs", "keeps state", "options", "what it does"),
        facts,
        "Options: the method's own + those of its parts. `adte methods NAME` shows them, and the "
        "method's reference.",
        text=True,
    )


def _counts(row: dict[str, Any]) -> str:
    inside = sum(len(part["options"]) for part in _parts(row))
    return f"{len(_own(row))} + {inside}" if inside else str(len(_own(row)))


def _own(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [o for o in row["options"] if "options" not in o]


def _parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [o for o in row["options"] if "options" in o]


def _one_method(row: dict[str, Any]) -> None:
    """A method's own options, then each part that it holds, with the part's options indented."""
    cells = [[o["name"], str(o["default"]), _help(o)] for o in _own(row)]
    for part in _parts(row):
        cells.append([part["name"], "", f"{part['help']}:"])
        cells += [[f"  {o['name']}", str(o["default"]), _help(o)] for o in part["options"]]
    inside = sum(len(part["options"]) for part in _parts(row))
    count = f"{len(_own(row))} of its own"
    if inside:
        count += f", {inside} of its parts ({', '.join(o['name'] for o in _parts(row))})"
    how = ""
    if parts := _parts(row):
        first = parts[0]
        how = (
            f" Set an option of a part by its name, or as {first['name']}."
            f"{first['options'][-1]['name']}; {first['name']}=… sets the part's first option."
        )
    console.table(
        f"{row['name']}: {row['summary']}",
        ("option", "default", "what it does"),
        cells,
        f"Options: {count}.{how}\n{row['reference']}",
        text=True,
    )


def _help(option: dict[str, Any]) -> str:
    known = ", ".join(option["choices"] or ()) or option["bounds"]
    name, *values = option["only"] or [""]
    only = f"only with {name}={' or '.join(values)}" if name else ""
    more = "; ".join(filter(None, [known, only]))
    return f"{option['help']} ({more})" if more else str(option["help"])


class Listed(Verbs):
    """A group that lists if its first word is none of its verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@main.group(cls=Listed)
def models() -> None:
    """List the models (`adte models [PATTERN]`), or download the weights of one (`adte models get
    NAME`).
    """


@models.command("list")
@click.argument("pattern", default="*")
@JSON
def list_(pattern: str, json_to: str | None) -> None:
    """List the models whose name matches PATTERN, such as 'ViT*'.

    Models of the Hugging Face hub (hf:ID or hf:FOLDER) and of timm (timm:NAME) can be used too, but
    are too many to list.
    """
    from adte.models import list_models

    names = list_models(pattern)
    if json_to:
        console.emit_json([{"name": n} for n in names], json_to)
    for name in names if json_to != "-" else ():
        console.out.print(name, markup=False)
    if not names:
        raise _no_model(pattern)


def _no_model(pattern: str) -> InputError:
    from adte.models.openclip import import_open_clip

    mend = "`adte models` lists all but those of hf:ID and timm:NAME"
    try:
        import_open_clip()
    except MissingExtra:
        mend = "those of open_clip, such as ViT-B-16/openai, need: pip install 'adte[clip]'"
    if pattern.partition(":")[0] in ("hf", "timm"):
        mend = "names with hf: and timm: are not listed, but can be used"
    return InputError(f"no model matches {pattern!r}; {mend}")


@models.command("get")
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="URL|FILE|FOLDER",
    help="Take the weights from here: a file, a folder that holds it, or such a folder's address.",
)
@click.option(
    "--to",
    metavar="FILE",
    help="Write the weights to FILE, to be given as --weights, and not to the usual cache.",
)
def get_weights(name: str, source: str | None, to: str | None) -> None:  # fmt: skip
    """Download the weights of the open_clip model NAME, such as ViT-B-16/openai.

    The addresses are those that open_clip publishes. A download that was interrupted continues
    where it stopped. Where a checksum is published, the file is verified.
    """
    from adte.models.get import get_model

    with console.progress(name, None) as bar:
        path = get_model(name, source, to, bar.download)
    console.out.print(f"done: {path}", markup=False, soft_wrap=True)
    use = name if to is None else f"{name} --weights {path}"
    console.out.print(f"use it: adte predict IMAGES --classes NAMES --model {use}",
                      markup=False, soft_wrap=True)  # fmt: skip


@main.command()
@click.argument("name", required=False)
@JSON
def datasets(name: str | None, json_to: str | None) -> None:
    """List the data sets, or show how to get the set NAME and how its files must be laid out."""
    from adte.data import dataset_info, list_datasets

    rows = [dataset_info(n).row() for n in ([name] if name else list_datasets())]
    if not console.told(rows, json_to):
        return
    if name:
        return _one_set(rows[0])
    cells = [
        [r["name"], _count(r["images"]), _count(r["classes"]), *_expected(r), r["title"]]
        for r in rows
    ]
    columns = ("name", "images", "classes", "B/16", "L/14", "what")
    console.table("Data sets", columns, cells, "B/16, L/14: zero-shot accuracy of OpenAI CLIP to "
                  "expect, %. `adte datasets NAME` says how to get a set.", text=True)  # fmt: skip


def _count(n: int | None) -> str:
    return "" if n is None else f"{n:,}"


def _expected(row: dict[str, Any]) -> list[str]:
    values = (row["zero_shot"].get(model) for model in ("ViT-B-16", "ViT-L-14"))
    return ["" if v is None else f"{100 * v:.1f}" for v in values]


def _one_set(row: dict[str, Any]) -> None:
    known = {"title": "title", "how": "how", "terms": "terms", "column": "in the paper"}
    facts = [[known[k], str(v)] for k, v in row.items() if v and k in known]
    facts += [[k, _count(row[k])] for k in ("images", "classes") if row[k] is not None]
    facts += [["layout", layout] for layout in row["layouts"]]
    facts += [["template", t] for t in row["templates"]]
    for o in row["options"]:
        usual = "" if o["default"] is None else f" ({o['default']} by default)"
        facts.append([f"option {o['name']}", f"{o['help']}{usual}"])
    facts += [["--data", row["usage"]]]
    console.table(row["name"], ("", ""), facts, text=True)


@main.group()
def data() -> None:
    """Check a data set on disk, or download one."""


@data.command()
@click.argument("name")
@click.argument("path")
@click.option("--sample", default=32, type=COUNT, show_default=True,
              help="Number of images to decode.")  # fmt: skip
@JSON
def check(name: str, path: str, sample: int, json_to: str | None) -> None:
    """Check the data set NAME at PATH: its layout, counts, class order and a sample of its images.

    Options of its reader can follow PATH, as in --data: PATH?option=value.
    """
    from adte.data import check_dataset
    from adte.data.registry import settings

    path, options = settings(name, path)
    with console.notes():
        findings = check_dataset(name, path, sample, **options)
    rows = [f.row() for f in findings]
    if console.told(rows, json_to):
        cells = [[r["what"], r["status"], r["detail"]] for r in rows]
        console.table(f"{name} at {path}", ("check", "result", "detail"), cells, text=True)
    if any(f.status == "wrong" for f in findings):
        raise click.exceptions.Exit(2)


@data.command()
@click.argument("name")
@click.argument("folder")
@click.option("--mirror", help="Download from this address instead, a folder with the same files.")
@click.option("--keep", is_flag=True, help="Keep the archives after unpacking.")
def get(name: str, folder: str, mirror: str | None, keep: bool) -> None:
    """Download the data set NAME into FOLDER, verify its checksums and unpack it.

    A download that was interrupted continues where it stopped.
    """
    from adte.data import download

    with console.progress(name, 1) as bar:
        for path in download(name, folder, bar.download, mirror, keep=keep):
            console.out.print(f"done: {path}", markup=False)
