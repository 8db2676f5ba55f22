"""Labels on one page, with small pictures: to look at, and to check some of them by eye.

Those to check are drawn at random, so that the share that is right is that of all images. What a
person says of them the page saves as a table of paths and labels, which `adte calibrate` takes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from adte.classifier.facts import read_state
from adte.core.errors import InputError
from adte.core.page import inline
from adte.files.claims import Target, claim
from adte.files.inputs import expand, is_archive
from adte.files.journal import Mark, place_of
from adte.files.rows import escape_name, read_rows, rows_of
from adte.files.states import load_state
from adte.files.whole import write_whole
from adte.images.decode import read_picture
from adte.label.saved import Saved
from adte.label.sheet import Answer, Card, sheet
from adte.pipeline import default_workers

__all__ = ["Look", "Looked"]


class Looked(NamedTuple):
    """What `Look.run` wrote.

    Attributes:
        page: path of the page.
        images: number of images that were labelled, or were unsure.
        shown: number of images on the page.
        check: number of images to check by eye.
        missing: number of images whose picture could not be made.
        passed: number of images that were drawn to check and passed over: no file is of that name,
            or a table could not hold it.
    """

    page: str
    images: int
    shown: int
    check: int
    missing: int
    passed: int


@dataclass
class Look:
    """Makes an HTML page of labelled images: what `adte look` does. Call `run`.

    Attributes:
        labels: file of rows that a `Job` wrote. Those of a .json or .parquet lie in the .jsonl
            beside it.
        out: page to write; by default beside the rows, as .html.
        state: state file that belongs to the rows; by default the one beside them, if there is one.
        images: maximum number of pictures, the least sure of each label first.
        check: number of images to check by eye, drawn at random.
        side: longer side of a picture, in pixels.
        shown: indices of the rows that are on the page.
    """

    labels: str
    out: str | None = None
    state: str | None = None
    images: int = 500
    check: int = 50
    side: int = 160
    shown: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rows = rows_of(self.labels)
        self._answers, self._unread = _settled(read_rows(rows))
        if not self._answers:
            raise InputError(f"{self.labels!r} holds no labelled image; there is nothing to see")
        self.page = self.out or str(Path(self.labels).with_suffix(".html"))
        state = self.state or Saved.beside(self.labels).path
        self._classes, self._state, folder = _known(rows, state, self.state is None)
        claim([Target("--out", self.page)], [self.labels, rows, *filter(None, [self._state])], True)
        self._places = [place_of(a.name, folder) for a in self._answers]
        self._check = self._sample()
        most = max(self.images, len(self._check))
        self.shown = [*dict.fromkeys([*self._check, *_spread(self._answers)])][:most]

    def _sample(self) -> list[int]:
        """Images to check that a table can name: files, called by valid Unicode."""

        def fits(place: str) -> bool:
            return escape_name(place) == place and os.path.isfile(place)

        places = self._places
        drawn: list[int] = []
        self._passed = 0
        for i in random.Random(0).sample(range(len(places)), len(places)):
            if len(drawn) == self.check:
                break
            if fits(places[i]):
                drawn.append(i)
            else:
                self._passed += 1
        return drawn

    def run(self, tick: Callable[[int], object] = lambda count: None) -> Looked:
        """Write the page; `tick` is called with the number of pictures that were just made."""
        answers, places = self._answers, self._places
        pictures = self._pictures(tick)
        cards = {i: Card(i, answers[i], places[i], pictures.get(i)) for i in self.shown}
        check = [cards[i] for i in self._check]
        title = escape_name(os.path.basename(self.labels))
        text = sheet(title, answers, self._unread, [*cards.values()], check, self._classes,
                     self._state)  # fmt: skip
        write_whole(self.page, text)
        missing = len(cards) - len(pictures)
        return Looked(self.page, len(answers), len(cards), len(check), missing, self._passed)

    def _pictures(self, tick: Callable[[int], object]) -> dict[int, str]:
        """Small pictures of images by their number, as far as they can be had."""

        def draw(item: tuple[int, Any]) -> tuple[int, str | None]:
            try:
                return item[0], thumbnail(item[1], self.side)
            except InputError:
                return item[0], None

        pictures: dict[int, str] = {}
        sources = _sources({i: self._places[i] for i in self.shown})
        with ThreadPoolExecutor(max(1, default_workers())) as pool:
            while some := [*islice(sources, 64)]:  # those of archives are in memory
                for i, picture in pool.map(draw, some):
                    tick(1)
                    if picture is not None:
                        pictures[i] = picture
        return pictures


def thumbnail(source: Any, side: int) -> str:
    """Any image that `load_image` reads, as a small JPEG in the form of an address."""

    def fraction(height: int, width: int) -> int:
        return next(n for n in (8, 4, 2, 1) if n == 1 or min(height, width) >= side * n)

    image = Image.fromarray(np.asarray(read_picture(source, fraction).pixels))
    image.thumbnail((side, side))
    return inline(image)


def _known(rows: str, state: str, may_miss: bool) -> tuple[Sequence[str] | None, str | None, str]:
    """The classes and the state of rows, where it is there, and the folder where names start."""
    if may_miss and not os.path.exists(state):
        return None, None, os.getcwd()
    facts = read_state(load_state(state)[1], state)
    mark = Mark.among(facts["outputs"] or {}, rows, state)
    return facts["classes"], state, mark.base(rows) if mark else os.getcwd()


def _settled(rows: Iterator[dict[str, Any]]) -> tuple[list[Answer], dict[str, str]]:
    """The answers, and the errors that no later row has mended, by the names of their images."""
    answers: list[Answer] = []
    unread: dict[str, str] = {}
    for row in rows:
        name, label, best = row["path"], row["label"], row["top"]
        if row["error"]:
            unread[name] = row["error"]
            continue
        unread.pop(name, None)
        guess = intern(label or (best[0]["class"] if best else ""))
        answers.append(Answer(name, label and guess, guess, row["confidence"] or 0.0))
    return answers, unread


def _spread(answers: Sequence[Answer]) -> Iterator[int]:
    """All of them: the least sure of every label, then the next of every label, and so on."""
    groups: dict[str | None, list[int]] = {}
    for i in sorted(range(len(answers)), key=lambda i: answers[i].confidence):
        groups.setdefault(answers[i].label, []).append(i)
    rank = {i: n for some in groups.values() for n, i in enumerate(some)}
    yield from sorted(rank, key=lambda i: rank[i])


def _sources(places: dict[int, str]) -> Iterator[tuple[int, Any]]:
    """What each image is read from: its file, or the archive that it lies in."""
    packed: dict[str, dict[str, list[int]]] = {}
    for i, place in places.items():
        if os.path.isfile(place):
            yield i, Path(place)
            continue
        above = (str(p) for p in Path(place).parents)
        archive = next((p for p in above if is_archive(p) and os.path.isfile(p)), None)
        if archive is None:
            yield i, b""  # it is gone, or lies where it cannot be looked for
        else:
            packed.setdefault(archive, {}).setdefault(place, []).append(i)
    for archive, wanted in packed.items():
        for name, source in expand([archive]):
            for i in wanted.pop(str(Path(name)), []):
                yield i, source
        yield from ((i, b"") for rest in wanted.values() for i in rest)
