"""Is the set on disk the set that was meant? Ask before spending hours of computing."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adte.core.errors import AdteError, InputError
from adte.data.base import Dataset
from adte.data.names import imagenet_classes
from adte.data.registry import Location, Reader, create_reader, looks_like
from adte.images.decode import load_image

__all__ = ["Finding", "check_dataset"]


Status = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One check of a data set: what was checked, whether it is ok, and in detail."""

    what: str
    status: Status
    detail: str

    def row(self) -> dict[str, str]:
        return asdict(self)


def check_dataset(
    name: str, path: str, sample: int = 32, seed: int = 0, **options: Any
) -> list[Finding]:
    """Check the layout, counts and classes of a data set on disk, and decode a sample of it.

    Args:
        name: name of the set, as in `list_datasets`.
        path: where it is.
        sample: number of images to decode; the first and the last are always among them.
        seed: seed by which the others are drawn.
        options: options of the reader.

    Returns:
        One finding per check. The set should not be used if the status of any is "wrong".
    """
    part = create_reader(name, **{**options, "complete": False})
    try:
        data = part.load(path)
    except AdteError as error:
        return [Finding("layout", "wrong", str(error))]
    root = Path(os.path.expanduser(path))
    location = part.find(root) or Location(root, data.split)
    out = [Finding("layout", "ok", data.split), *_counts(data, location, part), *_classes(data)]
    md5 = getattr(part, "coop_md5", "")  # of CoopReader
    if md5 and location.split and location.split.suffix == ".json":
        out.append(_split_file(location.split, md5))
    out.append(_sample(data, sample, seed))
    if any(f.status == "wrong" for f in out) and (other := looks_like(root, but=name)):
        out.append(Finding("looks like", "note", other))
    if part.info.zero_shot:
        best = ", ".join(f"{k} {100 * v:.1f} %" for k, v in list(part.info.zero_shot.items())[:3])
        out.append(Finding("zero-shot to expect", "note", f"{best} ({part.info.zero_shot_source})"))
    return out


def _counts(data: Dataset, location: Location, reader: Reader) -> Iterator[Finding]:
    for what, here, want in (
        ("images", len(data), location.images), ("classes", len(data.classes), reader.info.classes)
    ):  # fmt: skip
        good = want is None or here == want
        text = f"{here} {what}" + ("" if want is None else f", {want} expected")
        yield Finding(what, "ok" if good else "wrong", text)
    counts = data.counts
    empty = [data.class_ids[i] for i in np.flatnonzero(counts == 0)]
    if empty:
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        status: Status = "note" if reader.generic else "wrong"
        yield Finding("empty classes", status, ", ".join(empty[:3]) + more)
    else:
        yield Finding("class sizes", "ok", f"{counts.min()} to {counts.max()} images a class")


def _classes(data: Dataset) -> Iterator[Finding]:
    """Names against WordNet ids, or whether each folder of images has one label."""
    known = dict(imagenet_classes())
    folders: dict[str, set[int]] = {}
    for name, label in zip(data.ids, data.labels.tolist(), strict=True):
        folders.setdefault(name.rpartition("/")[0], set()).add(label)
    if all(c in known for c in data.class_ids):
        wrong = [c for c, n in zip(data.class_ids, data.classes, strict=True) if known[c] != n]
        if list(data.class_ids) != sorted(data.class_ids):
            yield Finding("class order", "wrong", "WordNet ids are not sorted")
        elif wrong:
            text = f"WordNet ids in sorted order; {len(wrong)} names differ from OpenAI's"
            yield Finding("class order", "note", f"{text} ({wrong[0]})")
        else:
            yield Finding("class order", "ok", "WordNet ids in sorted order")
    elif len(folders) >= len(data.classes) > 1:
        mixed = [f for f, ys in folders.items() if len(ys) > 1]
        text = f"folder {mixed[0]!r} has several labels" if mixed else "one label a folder"
        yield Finding("class order", "note" if mixed else "ok", text)
    names = [f"{i} {name!r}" for i, name in enumerate(data.classes)]
    names = [*names[:2], "…", names[-1]] if len(names) > 3 else names
    yield Finding("names", "note", ", ".join(names))
    twice = sorted(name for name, count in Counter(data.classes).items() if count > 1)
    if twice:
        text = f"{', '.join(twice)} occur more than once; classes are told apart by index"
        yield Finding("repeated names", "note", text)


def _split_file(path: Path, md5: str) -> Finding:
    same = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == md5
    text = "the file in circulation" if same else "not the file in circulation; results may differ"
    return Finding("split file", "ok" if same else "note", f"{path.name}: {text}")


def _sample(data: Dataset, sample: int, seed: int) -> Finding:
    drawn = np.random.default_rng(seed).permutation(len(data))[: max(sample - 2, 0)]
    places = sorted({0, len(data) - 1, *drawn.tolist()})
    sides: list[int] = []
    lost: list[str] = []
    for i in places:
        try:
            sides += load_image(data.sources[i]).shape[:2]
        except (InputError, OSError) as error:
            lost.append(f"{data.ids[i]}: {error}")
    if not sides:
        text = f"none of the {len(places)} images could be read, the first because {lost[0]}"
        return Finding("sample", "wrong", text)
    decoded = len(places) - len(lost)
    text = f"{decoded} of {len(places)} decoded, sides {min(sides)} to {max(sides)} pixels"
    return Finding("sample", "wrong" if lost else "ok", "; ".join([text, *lost[:1]]))
