"""The page of labels: what there is of each, pictures by label, and some to check by eye."""

from __future__ import annotations

import html
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
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
    names = sorted({a.guess for a in answers}) if classes is None else classes
    groups = _grouped(answers, shown)
    unsure = sum(a.label is None for a in answers)
    said = [counted(len(answers), "image"), counted(len(groups) - bool(unsure), "label")]
    said += [f"{unsure} without a label"] * bool(unsure)
    said += [f"{len(unread)} that could not be read"] * bool(unread)
    parts = [
        f'<p class="lead">{", ".join(said)}.</p>\n',
        _overview(groups, len(answers)),
        _check(check, names, state) if check else "",
        _pictures(groups, len(answers), len(shown)),
        _unread(unread),
    ]
    style, script = (_file(f"look.{kind}") for kind in ("css", "js"))
    return page(title, parts, style, script)


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


def _text(text: str) -> str:
    return html.escape(escape_name(text))


def _percent(value: float) -> str:
    """Nothing is wholly sure.

    >>> _percent(0.9999)
    '99.9 %'
    """
    percent = 100 * value
    return f"{min(percent, 99.9):.1f} %" if percent > 99 else f"{percent:.0f} %"


def _overview(groups: Sequence[Group], total: int) -> str:
    most = max(g.size for g in groups)
    rows = "".join(
        f'<tr><th scope="row"><a href="#label-{i}">{_text(g.title)}</a></th><td>{g.size:,}</td>'
        f'<td class="bar"><span style="width:{100 * g.size / most:.1f}%"></span></td>'
        f"<td>{100 * g.size / total:.1f} %</td><td>{_percent(g.confidence)}</td></tr>\n"
        for i, g in enumerate(groups)
    )
    return (
        '<h2>Labels</h2>\n<div class="wide full" tabindex="0"><table>'
        "<caption>Images by label</caption><thead><tr>"
        '<th scope="col">label</th><th scope="col">images</th>'
        '<th scope="col" class="bar"></th><th scope="col">share</th><th scope="col">confidence</th>'
        f"</tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )


def _check(cards: Sequence[Card], classes: Sequence[str], state: str | None) -> str:
    options = "".join(f'<option value="{_text(name)}"></option>' for name in classes)
    items = "".join(
        f'<li class="card" data-number="{c.number}" data-path="{_text(os.path.abspath(c.place))}" '
        f'data-label="{_text(c.answer.guess)}" data-confidence="{c.answer.confidence:.6f}">'
        f'<img alt="{_text(os.path.basename(c.place))}"><p class="said"><strong>'
        f"{_text(c.answer.guess)}</strong> {_percent(c.answer.confidence)}</p>"
        '<p class="ask"><button type="button" value="right" aria-pressed="false">right</button> '
        '<button type="button" value="wrong" aria-pressed="false">wrong</button> '
        '<input type="text" list="classes" placeholder="it is …" autocomplete="off" '
        f'aria-label="what {_text(os.path.basename(c.place))} is, if not {_text(c.answer.guess)}">'
        "</p></li>\n"
        for c in cards
    )
    command = ["adte", "calibrate", "csv:checked.csv", "--state", state or "FILE.adte"]
    return (
        f'<section id="check"><h2>Check {len(cards)} by eye</h2>\n'
        "<p>These images were drawn at random, so the share of right labels among them is an "
        "estimate for all images. Say for each whether its label is right; if it is wrong, name "
        "its class if you can. A name that is not in the list counts as wrong.</p>\n"
        '<p class="lead" id="score" role="status"></p>\n'
        '<p class="screen"><button type="button" id="save" disabled>Save checked.csv</button> '
        '<button type="button" id="clear" disabled>Start over</button></p>\n'
        "<p>With about fifty images checked, you can calibrate the confidence:</p>\n"
        f"<p><code>{_text(' '.join(map(shlex.quote, command)))}</code></p>\n"
        f'<datalist id="classes">{options}</datalist>\n'
        f'<ol class="cards">\n{items}</ol></section>\n'
    )


def _pictures(groups: Sequence[Group], total: int, shown: int) -> str:
    some = "" if shown == total else f" {shown:,} of the {total:,} images are shown."
    parts = [
        "<h2>Pictures</h2>\n"
        f"<p>Within each label, the least confident images come first.{some}</p>\n"
        '<p class="screen"><label>Show images of up to <input type="range" id="up-to" min="0" '
        'max="100" value="100"> <output for="up-to">100 %</output> confidence</label></p>\n'
    ]
    for i, g in enumerate(groups):
        more = "" if len(g.cards) == g.size else f", {len(g.cards)} shown"
        cards = "".join(map(_card, g.cards))
        parts.append(
            f'<details id="label-{i}"{" open" if i < OPEN else ""}><summary><strong>'
            f"{_text(g.title)}</strong><small>{g.size:,}{more}</small></summary>\n"
            f'<ul class="cards">\n{cards}</ul></details>\n'
        )
    return "".join(parts)


def _card(card: Card) -> str:
    answer, name = card.answer, _text(card.answer.name)
    guess = f"<em>{_text(answer.guess)}?</em> " if answer.label is None else ""
    picture = '<span class="none">no picture</span>'
    if card.picture is not None:
        picture = f'<img id="image-{card.number}" src="{card.picture}" alt="" loading="lazy">'
    return (
        f'<li class="card" data-confidence="{answer.confidence:.6f}" title="{name}">{picture}'
        f'<p class="said">{guess}{_percent(answer.confidence)}</p><small>'
        f"{_text(os.path.basename(answer.name))}</small></li>\n"
    )


def _unread(unread: Mapping[str, str]) -> str:
    if not unread:
        return ""
    items: Iterable[str] = (f"<li>{_text(reason)}</li>\n" for reason in unread.values())
    return f"<h2>Could not be read</h2>\n<ul>\n{''.join(items)}</ul>\n"
