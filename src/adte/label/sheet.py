"""The page of labels: what there is of each, pictures by label, and some to check by eye."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from adte.core.page import page
from adte.files.rows import escape_name
from adte.label.report import counted

__all__ = ["Answer", "Card", "sheet"]

OPEN = 12  # labels whose pictures are shown at once


class Answer(NamedTuple):
    """What is known of an image: the guess is its best class, too unsure for a label or not."""

    name: str
    label: str | None
    guess: str
    confidence: float


class Card(NamedTuple):
    """An image on the page: its number, what is known of it, its place, and a small picture."""

    number: int
    answer: Answer
    place: str
    picture: str | None


class Group(NamedTuple):
    """The images of a label: how many, the mean confidence, and those that are shown."""

    label: str | None
    size: int
    confidence: float
    cards: list[Card]

    @property
    def title(self) -> str:
        return "no label" if self.label is None else self.label


def sheet(
    title: str,
    answers: Sequence[Answer],
    unread: Mapping[str, str],
    shown: Sequence[Card],
    check: Sequence[Card],
    classes: Sequence[str] | None,
    state: str | None,
) -> str:
    """The page.

    Args:
        answers: all of them; shown: those with a place on the page; check: those of them to check.
        unread: reasons, by the names of images that could not be read.
        classes: that may be meant; by default those that were.
        state: what the answers were learned into, where it is there.
    """
    from jinja2 import Environment

    groups = _grouped(answers, shown)
    unsure = sum(a.label is None for a in answers)
    lead = [counted(len(answers), "image"), counted(len(groups) - bool(unsure), "label")]
    lead += [f"{unsure} without a label"] * bool(unsure)
    lead += [f"{len(unread)} that could not be read"] * bool(unread)
    template = Environment(autoescape=True)
    template.filters |= {"plain": escape_name, "percent": _percent,
                         "basename": os.path.basename, "abspath": os.path.abspath}  # fmt: skip
    command = ["adte", "calibrate", "csv:checked.csv", "--state", state or "FILE.adte"]
    body = template.from_string(_file("look.html")).render(
        lead=", ".join(lead), groups=groups, total=len(answers), shown=len(shown), check=check,
        classes=sorted({a.guess for a in answers}) if classes is None else classes,
        command=" ".join(map(shlex.quote, command)), open=OPEN, unread=[*unread.values()],
    )  # fmt: skip
    return page(title, [body], _file("look.css"), _file("look.js"))


def _file(name: str) -> str:
    return resources.files("adte.label").joinpath("page", name).read_text(encoding="utf-8")


def _grouped(answers: Sequence[Answer], shown: Sequence[Card]) -> list[Group]:
    """By label, the most frequent first; images without a label before all others."""
    totals: dict[str | None, tuple[int, float]] = {}
    for a in answers:
        count, sure = totals.get(a.label, (0, 0.0))
        totals[a.label] = count + 1, sure + a.confidence
    cards: dict[str | None, list[Card]] = {}
    for card in sorted(shown, key=lambda c: c.answer.confidence):
        cards.setdefault(card.answer.label, []).append(card)
    groups = [Group(k, n, sure / n, cards.get(k, [])) for k, (n, sure) in totals.items()]
    return sorted(groups, key=lambda g: (g.label is not None, -g.size, g.title))


def _percent(value: float) -> str:
    """Nothing is wholly sure.

    >>> _percent(0.9999)
    '99.9 %'
    """
    percent = 100 * value
    return f"{min(percent, 99.9):.1f} %" if percent > 99 else f"{percent:.0f} %"
