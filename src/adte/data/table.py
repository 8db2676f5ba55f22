"""A CSV file of paths and labels."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import published
from adte.data.files import missing
from adte.data.names import read_names
from adte.data.registry import Location, Reader
from adte.files.rows import unescape_cell
from adte.images.decode import is_image

__all__ = ["Table"]

PATH = ("path", "image", "file", "filename", "filepath")
LABEL = ("label", "class", "name", "target")


@published("csv")
@dataclass(frozen=True, kw_only=True)
class Table(Reader):
    """Columns path and label, optionally domain; without a header, the first two columns.

    A label is a class name, or a number if `classes` names a file of names. Classes that are named
    in the table only are sorted. Paths are relative to the table. With `complete=False` images that
    do not exist are skipped when their turn comes.
    """

    generic = True

    classes: str | None = option(None, "file of class names; labels may then be numbers")

    def find(self, root: Path) -> Location | None:
        return Location(root.parent, f"table {root.name}") if root.is_file() else None

    def recognise(self, root: Path) -> bool:
        return root.is_file() and root.suffix.lower() in (".csv", ".tsv")

    def read(self, root: Path, location: Location) -> Dataset:
        rows = _rows(root)
        if self.classes:
            names = read_names(self.classes)
        elif all(label.isdigit() for _, label, _ in rows):
            raise InputError(
                f"the labels of {str(root)!r} are numbers; give a file with their names, as in "
                f"csv:{root.name}?classes=names.txt"
            )
        else:
            names = {label: label for label in sorted({label for _, label, _ in rows})}
        rank = {name: y for y, name in reversed([*enumerate(names.values())])}
        rank |= {key: y for y, key in enumerate(names)}
        labels: dict[tuple[str, str], str] = {}
        for number, (path, label, domain) in enumerate(rows, 1):
            if label not in rank:
                raise InputError(
                    f"label {label!r} of image {number} in {str(root)!r} is no class of "
                    f"{self.classes!r}; give a name or a number from 0 to {len(names) - 1}"
                )
            if rank[other := labels.setdefault((path, domain), label)] != rank[label]:
                raise InputError(
                    f"{str(root)!r} names {path!r} twice, as {other!r} and as {label!r}; keep one "
                    "of the rows"
                )
        for path in missing(location.folder, (p for p, _, _ in rows)) if self.complete else ():
            raise InputError(
                f"{str(root)!r} names {path!r}, which is not in {str(location.folder)!r}; "
                "paths are relative to the table"
            )
        data = Dataset.of_files(
            root.stem, location.folder, [(path, rank[label]) for path, label, _ in rows],
            classes=tuple(names.values()), class_ids=tuple(names), split=location.layout, root=root,
        )  # fmt: skip
        domains = [domain for _, _, domain in rows]
        return replace(data, domains=domains) if any(domains) else data


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """Path, label and domain of each row, without the apostrophes that spreadsheets need."""
    lines = _cells(path)
    head = [cell.lower() for cell in lines[0]] if lines else []
    at = next((head.index(c) for c in PATH if c in head), None)
    to = next((head.index(c) for c in LABEL if c in head), None)
    where = head.index("domain") if "domain" in head else None
    body = lines[1:]
    if at is None or to is None:
        if head and (len(head) < 2 or not is_image(Path(lines[0][0]).name)):
            raise InputError(
                f"the table {str(path)!r} has columns {', '.join(head)}; it needs path and label"
            )
        at, to, where, body = 0, 1, None, lines
    rows = []
    for number, row in enumerate(body, 1):
        file, label, domain = (
            unescape_cell(row[i]) if i is not None and i < len(row) else "" for i in (at, to, where)
        )
        if not file or not label:
            lacks = f"{file!r} has no label" if file else "there is no path"
            raise InputError(
                f"in row {number} of {str(path)!r} {lacks}; give a path and a label in every "
                "row, or take the row away"
            )
        rows.append((file, label, domain))
    if not rows:
        raise InputError(f"the table {str(path)!r} has no rows; give a path and a label in each")
    return rows


def _cells(path: Path) -> list[list[str]]:
    try:
        text = path.read_text("utf-8-sig")
        head = text.partition("\n")[0]
        comma = ";" if head.count(";") > head.count(",") else ","  # as Excel may write it
        comma = "\t" if path.suffix.lower() == ".tsv" else comma
        rows = csv.reader(io.StringIO(text, ""), delimiter=comma)
        return [[cell.strip() for cell in row] for row in rows if any(row)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"cannot read the table {str(path)!r} ({error}); check the file, or save it as "
            "CSV in UTF-8"
        ) from error
