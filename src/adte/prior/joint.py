"""The joint estimate: the model's bias told from the stream's frequencies, image after image.

The mathematics is in `adte.bias`; its state is five sums per class. On a host it is followed there,
elsewhere by a kernel, where Triton can make one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte import bias
from adte.machine import compiled
from adte.prior.marginal import Marginal
from adte.prior.reading import Reading, Shares
from adte.prior.rule import FLOOR, Rule
from adte.state import Entry, State

__all__ = ["Joint", "shares"]

Array = NDArray[np.float64]
X = TypeVar("X", Array, Tensor)
Follow = Callable[
    [Tensor, Tensor, tuple[float, float], float], tuple[Tensor, Tensor, Tensor, Tensor]
]  # `adte.bias.device.follow`


class _Known(NamedTuple):
    """What is known by the time of images, a row each; fields as of `adte.bias.Joint`."""

    uneven: Tensor  # (B, L): what is divided by for all of the stream, not normalised
    shown: Tensor  # (B, L)
    trust: Tensor  # (B,)
    sure: Tensor  # (B,)


class Joint(Rule):
    """log p̃ = b − f: divided by what the model favours, multiplied by what the stream shows.

    `frequencies` says what is known: "equal" makes all that is uneven the model's, which is the
    marginal; "as-they-come" makes it the stream's. With neither, among more than 32 classes, f is
    asked again for each image that `scan` and `read` are given (`adte.bias.likely`); without images
    `read` says what holds of the stream.
    """

    def entries(self) -> dict[str, Entry]:
        return {name: Entry(("L",)) for name in bias.Sums._fields}

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        self.scan(state, log_p[None], False)
        return True

    def scan(self, state: State, items: Tensor, learn_first: bool) -> Reading:
        before = int(state["seen"])
        state["seen"] += len(items)
        counts = self._counts(state, items)
        follow = follower(items.device)
        if follow is not None:
            known, taken = self._follow_there(follow, state, items)
        else:
            known, taken = self._follow_here(state, items, learn_first)
        by_then = slice(learn_first, len(items) + learn_first)  # before each image, or after it
        known = _Known(*(x[by_then] for x in known))
        if counts is not None:
            counts = _followed(counts, taken)[:, by_then]
        reading = self._reading(before + learn_first, known, items, counts)
        return reading._replace(answers=taken)

    def _follow_here(self, state: State, items: Tensor, learn_first: bool) -> tuple[_Known, Tensor]:
        """Take items in: what is known before each and after the last, and the answers (B, L).

        What is known after the last is left out where nobody asks for it.
        """
        sums, answers = _sums(state), []
        known = [self._joint(sums)]
        rows = [self._uneven(sums.total, known[0].bias, known[0].shown)]
        said = items.cpu().numpy()
        for number, (log_p, p) in enumerate(zip(said, np.exp(said), strict=True), 1):
            answers.append(bias.take_in(sums, log_p, p, known[-1].bias, known[-1].shown))
            if learn_first or number < len(items):
                known.append(self._joint(sums))
                rows.append(self._uneven(sums.total, known[-1].bias, known[-1].shown))
        there, taken = items.device, torch.from_numpy(np.array(answers).reshape(items.shape))
        if there.type != "cpu":  # there they are the state's own
            kept = torch.from_numpy(np.array(sums)).to(there).unbind()
            state.update(zip(sums._fields, kept, strict=True))
        return _stacked(rows, known, there), taken.to(there)

    def _follow_there(self, follow: Follow, state: State, items: Tensor) -> tuple[_Known, Tensor]:
        """The same on the items' device, without a question to it."""
        names, o = bias.Sums._fields, self.options
        sums = torch.stack([state[name] for name in names])
        _, n, squares, *_ = sums.sum(-1)
        smoothing = (o.smoothing, o.smoothing_total)
        favoured, shown, totals, trust = follow(sums, items, smoothing, o.clip)
        state.update(zip(names, sums.unbind(), strict=True))
        taken = torch.softmax(items - favoured[:-1] + shown[:-1] / 2, -1)
        squares = squares + torch.nn.functional.pad(taken.square().sum(-1).cumsum(0), (1, 0))
        sure = bias.sureness(squares, n + torch.arange(len(squares), device=n.device))
        return _Known(self._uneven(totals, favoured, shown), shown, trust, sure), taken

    def read(self, state: State, items: Tensor | None = None) -> Reading:
        sums, there = _sums(state), state["total"].device
        now = self._joint(sums)
        known = _stacked([self._uneven(sums.total, now.bias, now.shown)], [now], there)
        return self._reading(int(state["seen"]), known, items, self._counts(state, items))

    def log_prior(self, state: State) -> Tensor:
        return self.read(state).log_prior[0]

    def begin(self, state: State) -> None:
        """How often classes came is forgotten; all else is the model's."""
        sums, there, o = _sums(state), state["total"].device, self.options
        new = bias.begun(sums, (o.smoothing, o.smoothing_total), o.clip)
        if o.frequencies == "equal":
            new = new._replace(total=sums.total)
        state.update({k: torch.from_numpy(v).to(there) for k, v in new._asdict().items()})

    def shares(self, state: State) -> Shares:
        return shares(_sums(state))

    def _counts(self, state: State, items: Tensor | None) -> Tensor | None:
        """N and Q (2, 1, L) if frequencies are asked again for these items, a copy.

        They are where nothing is said of them, and not all classes are likely.
        """
        asked = self.options.frequencies == "auto" and len(state["total"]) > bias.LIKELY
        if items is None or not asked:
            return None
        return torch.stack([state["answers"], state["squares"]])[:, None]

    def _reading(
        self, seen: int, known: _Known, items: Tensor | None, counts: Tensor | None
    ) -> Reading:
        """What neighbouring images read, the first of which came after `seen` others.

        With N and Q by then, `counts` (2, B or 1, L), frequencies are asked again among the classes
        that each of the items (B, L) may be of; without them all read the same of the stream. The
        trust in frequencies is none where those are equal.
        """
        uneven, shown, trust, sure = known
        if items is None or counts is None:
            trust = trust * (self.options.frequencies != "equal")
            return Reading(self._told(uneven, seen), 0, trust, sure)
        found = bias.among(items, uneven, counts, shown, trust)
        told = self._told(found.uneven, seen)
        return Reading(told, 0, trust * found.few, sure, likely=found.classes)

    def _joint(self, sums: bias.Sums) -> bias.Joint:
        o = self.options
        return bias.joint(sums, (o.smoothing, o.smoothing_total), o.clip)

    def _uneven(self, total: X, favoured: X, shown: X) -> X:
        """What is to be divided by, by what is known of the frequencies; not normalised yet."""
        if self.options.frequencies == "equal":
            return total + 0.0
        return -shown if self.options.frequencies == "as-they-come" else favoured - shown

    def _told(self, uneven: Tensor, seen: int) -> Tensor:
        """log p̃ (B, L) of neighbouring images, the first of which came after `seen` others."""
        if self.options.frequencies != "equal":
            return torch.log_softmax(uneven, -1)
        number = torch.arange(seen, seen + len(uneven)).to(uneven)
        return Marginal(self.options).log_mean(uneven, number)


def _followed(counts: Tensor, taken: Tensor) -> Tensor:
    """N and Q before each image and after the last.  (2, 1, L), (B, L) → (2, B + 1, L)"""
    out = taken.new_empty(2, len(taken) + 1, taken.shape[1])
    out[:, :1] = counts
    out[0, 1:] = taken
    torch.square(taken, out=out[1, 1:])
    return out.cumsum_(1)


def _stacked(uneven: Sequence[Array], known: Sequence[bias.Joint], there: torch.device) -> _Known:
    _, shown, trust, sure = zip(*known, strict=True)
    return _Known(
        *(torch.from_numpy(np.array(rows)).to(there) for rows in (uneven, shown, trust, sure))
    )


def _sums(state: State) -> bias.Sums:
    """The sums; on a host, the state's own."""
    sums = [state[name] for name in bias.Sums._fields]
    if sums[0].device.type == "cpu":
        return bias.Sums(*(x.numpy() for x in sums))
    return bias.Sums(*torch.stack(sums).cpu().numpy())  # one question to the device


@lru_cache(maxsize=16)
def follower(device: torch.device) -> Follow | None:
    """What follows a stream on its device: a kernel, where Triton can make one."""
    if device.type != "cuda":
        return None
    sums = torch.zeros(5, 2, dtype=torch.float64, device=device)
    room = compiled(
        "adte.bias.device",
        lambda room: room.follow(sums, sums[:1].clone(), (1.0, 1.0), 1.0),
        "the prior is followed",
    )
    follow: Follow | None = None if room is None else room.follow
    return follow


# --------------------------------------------------------------------------- what is in the stream


def shares(sums: bias.Sums, deviations: float = 1.96) -> Shares:
    """What a stream of n = Σ N images is made of.  (L,) each

    Where classes are about equally frequent the mean answer N/n is the better estimate, where few
    are shown counting labels is; so the share is s = (1 − g)·N/n + g·labels/n, with the trust g in
    the frequencies. Its variance has two parts: s (1 − s)/n for the images that came, and d² with
    d = Σ r (1 − r)/n = (N − Q)/n, all that is unsure, as if images erred together. Both ends are
    Wilson's for as many sure images as have that variance; the lower one is no higher than s less
    so many deviations, so that a class of less than an image may be none.

    >>> counts = np.array([30.0, 10.0, 0.0])
    >>> shares(bias.Sums(counts, counts, np.array([28.0, 9.0, 0.0]), counts, counts)).high
    tensor([0.8763, 0.4124, 0.0876], dtype=torch.float64)
    """
    n = max(float(sums.answers.sum()), 1.0)
    _, trust = bias.frequencies(sums)
    s = torch.from_numpy(sums.answers + trust * (sums.labels - sums.answers)) / n
    doubt = torch.from_numpy(sums.answers - sums.squares) / n
    spread = (s * (1 - s)).clamp_min(FLOOR)
    variance = spread / n + doubt.square()
    z2 = deviations**2 * variance / spread  # z² over the number of sure images
    reach = (z2 * spread + z2.square() / 4).sqrt()
    low = torch.minimum((s + z2 / 2 - reach) / (1 + z2), s - deviations * variance.sqrt())
    return Shares(s, low.clamp_min(0), ((s + z2 / 2 + reach) / (1 + z2)).clamp_max(1))
