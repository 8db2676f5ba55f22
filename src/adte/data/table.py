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
from adte.data.registry import Found, Reader
from adte.files.rows import unescape_cell
from adte.images.decode import is_image

__all__ = ["Table"]

PATH = ("path", "image", "file", "filename", "filepath")
LABEL = ("label", "class", "name", "target")


def _between(path: Path, text: str) -> str:
    """What parts the columns: a semicolon where Excel writes commas in numbers."""
    head = text.partition("\n")[0]
    if path.suffix.lower() == ".tsv":
        return "\t"
    return ";" if head.count(";") > head.count(",") else ","


@published("csv")
@dataclass(frozen=True, kw_only=True)
class Table(Reader):
    """Columns path and label, optionally domain; without a header, the first two columns.

    A label is a class name, or a number if `classes` names a file of names. Classes that are named
    in the table only are sorted. Paths are relative to the table.
    """

    generic = True
    mend = "check the path"

    classes: str | None = option(None, "file of class names; labels may then be numbers")
    check_files: bool = option(True, "check that all images exist; false does so as they are read")

    def find(self, root: Path) -> Found | None:
        return Found(root.parent, "table") if root.is_file() else None

    def recognise(self, root: Path) -> bool:
        return root.is_file() and root.suffix.lower() in (".csv", ".tsv")

    def read(self, root: Path, found: Found) -> Dataset:
        rows = self._rows(root)
        names = read_names(self.classes) if self.classes else None
        texts = [label for _, label, _ in rows]
        if names is None:
            if all(t.isdigit() for t in texts):
                raise InputError(
                    f"the labels of {str(root)!r} are numbers; give a file with their names, as in "
                    f"csv:{root.name}?classes=names.txt"
                )
            names = {t: t for t in sorted(set(texts))}
        ids, values = list(names), list(names.values())
        rank = {v: i for i, v in reversed([*enumerate(values)])} | {v: i for i, v in enumerate(ids)}
        for number, text in enumerate(texts, 1):
            if text not in rank:
                raise InputError(
                    f"label {text!r} of image {number} in {str(root)!r} is no class of "
                    f"{self.classes!r}; give a name or a number from 0 to {len(ids) - 1}"
                )
        first = dict[tuple[str, str], str]()
        for path, text, domain in rows:
            if rank[other := first.setdefault((path, domain), text)] != rank[text]:
                raise InputError(
                    f"{str(root)!r} names {path!r} twice, as {other!r} and as {text!r}; keep one "
                    "of the rows"
                )
        lost = missing(found.folder, (p for p, _, _ in rows)) if self.check_files else iter(())
        for path in lost:
            raise InputError(
                f"{str(root)!r} names {path!r}, which is not in {str(found.folder)!r}; "
                "paths are relative to the table"
            )
        data = Dataset.of_files(
            root.stem, found.folder, [(p, rank[t]) for p, t, _ in rows],
            classes=tuple(values), class_ids=tuple(ids), split=f"table {root.name}", root=root,
        )  # fmt: skip
        domains = [d for _, _, d in rows]
        return replace(data, domains=domains) if any(domains) else data

    def _rows(self, path: Path) -> list[tuple[str, str, str]]:
        try:
            text = path.read_text("utf-8-sig")
            lines = [
                r
                for r in csv.reader(io.StringIO(text, ""), delimiter=_between(path, text))
                if any(r)
            ]
        except (OSError, ValueError, csv.Error) as error:
            raise InputError(
                f"cannot read the table {str(path)!r} ({error}); check the file, or save it as "
                "CSV in UTF-8"
            ) from error
        if not lines:
            raise InputError(f"the table {str(path)!r} is empty; give rows of a path and a label")
        head = [c.strip().lower() for c in lines[0]]
        at = next((head.index(c) for c in PATH if c in head), None)
        to = next((head.index(c) for c in LABEL if c in head), None)
        if at is None or to is None:
            if len(head) < 2 or not is_image(Path(lines[0][0]).name):
                raise InputError(
                    f"the table {str(path)!r} has columns {', '.join(head)}; "
                    "it needs path and label"
                )
            at, to, first = 0, 1, 0
        else:
            first = 1
        where = head.index("domain") if first and "domain" in head else None
        short = next((r for r in lines[first:] if len(r) <= max(at, to, where or 0)), None)
        if short is not None:
            raise InputError(
                f"row {','.join(short)!r} of {str(path)!r} has {len(short)} columns, too few; "
                "give a path and a label in every row"
            )

        def cell(text: str) -> str:
            return unescape_cell(text.strip())  # as `adte look` and spreadsheets write it

        rows = [(cell(r[at]), cell(r[to]), cell(r[where]) if where is not None else "")
                for r in lines[first:]]  # fmt: skip
        if not rows:
            raise InputError(
                f"the table {str(path)!r} has no rows but its header; give a path and a label in "
                "every row"
            )
        for number, (file_name, label, _) in enumerate(rows, 1):
            if not file_name or not label:
                lacks = f"{file_name!r} has no label" if file_name else "there is no path"
                raise InputError(
                    f"in row {number} of {str(path)!r} {lacks}; give a path and a label in every "
                    "row, or take the row away"
                )
        return rows
