"""Orders over data sets, as data: the same parameters and seed give the same stream.

Two choices are independent: in which order the images of a domain come (`order`), and how domains
follow each other (`domains`). A third, `imbalance`, thins classes out first.

Orders
    listed       as the set has them; mostly sorted by class
    shuffled     a seeded permutation
    class-ordered  one class after the other
    correlated   Dirichlet, as in NOTE (Gong et al., 2022): there are as many chunks as classes;
                 each class is spread over the chunks by proportions ~ Dir(δ), a chunk that holds
                 its share of N takes no more; in a chunk, classes come as blocks in random order.
                 Small δ makes long runs of one class; what counts is δ·L, so many classes take
                 a smaller δ for the same effect.
Domains
    sequence     one after the other
    mixed        the union in one shuffle; the order within each domain is kept
    gradual      "type/severity" domains in steps 1 2 3 4 5 4 3 2 1 for each type
Imbalance, over classes k = 0 … L−1 in seeded order, of the n images that the largest class has
    exponential  n ρ^(−k/(L−1)) images are kept
    zipf         n (k+1)^(−s), with s such that the last class has n/ρ
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.core.options import build, check, flat, option
from adte.data.base import Dataset, Example, Examples
from adte.data.places import Row
from adte.images.decode import read_picture

__all__ = [
    "Stream", "StreamOptions", "another_order", "check_limit", "correlated", "gradual",
    "make_stream", "order_digest", "other_images",
]  # fmt: skip

Ints = NDArray[np.int64]
TOGETHER = ("class-ordered", "correlated")  # orders that keep images of a class together
TRIES = 10  # draws of the Dirichlet order before the best one is taken
SAMPLE = 5  # images of a set that are read to know it again


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of how data sets become a stream: order, domains, imbalance, length.

    The same options, data and seed always give the same stream.
    """

    order: Literal["listed", "shuffled", "class-ordered", "correlated"] = option(
        "shuffled",
        "order of the images within a domain: as in the set (listed), at random (shuffled), class "
        "by class (class-ordered), or in runs of one class (correlated)",
    )
    domains: Literal["sequence", "mixed", "gradual"] = option(
        "sequence",
        "order of the domains: one after the other (sequence), in one shuffle (mixed), or by "
        "rising and falling severity (gradual)",
    )
    imbalance: Literal["none", "exponential", "zipf"] = option(
        "none", "leave images out so that some classes are rarer, by an exponential or Zipf law"
    )
    ratio: float = option(
        10.0, "with imbalance, size of the most frequent class over that of the rarest", low=1
    )
    delta: float = option(
        0.1, "concentration δ of the correlated order; smaller makes longer runs", above=0
    )
    labels: Literal["own", "shared"] = option(
        "own",
        "with several sets: each keeps its own classes (own), or all are mapped to the union of "
        "their classes, by class id (shared)",
    )
    limit: int | None = option(None, "use only this many images, the first of the stream", low=1)
    seed: int = option(0, "seed of all random choices", low=0)

    def __post_init__(self) -> None:
        check(self, "a stream")


@dataclass(frozen=True, eq=False, repr=False)
class Stream(Examples):
    """A sequence of labelled images in a certain order, from one or several data sets.

    `make_stream` makes one. It can be iterated over as often as you like.

    Attributes:
        datasets: the data sets that the images come from.
        options: how they were ordered.
        places: for each image, the number of its data set and its index there (N, 2).
        maps: for each data set, the stream's label of each of its labels; None leaves them.
        classes, class_ids: names and ids of the stream's classes; None if each set keeps its own.
    """

    datasets: tuple[Dataset, ...]
    options: StreamOptions
    places: Ints
    maps: tuple[Ints | None, ...]
    classes: tuple[str, ...] | None
    class_ids: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.places)

    def example(self, index: int) -> Example:
        k, i = map(int, self.places[index])
        example, labels = self.datasets[k][i], self.maps[k]
        return example if labels is None else replace(example, label=int(labels[example.label]))

    def __repr__(self) -> str:
        names = ", ".join(d.name for d in self.datasets)
        return f"<Stream of {len(self)} images from {names}: {self.options}>"

    def identify(self, index: int) -> tuple[str, str]:
        """Id and domain of an image, without reading it."""
        k, i = map(int, self.places[index])
        return self.datasets[k].identify(i)

    def group(self, index: int) -> int:
        """Group of an image, without reading it; −1 for none."""
        k, i = map(int, self.places[index])
        groups = self.datasets[k].groups
        return -1 if groups is None else int(groups[i])

    @cached_property
    def labels(self) -> Ints:
        """Label of each image (N,), among the stream's classes."""
        sets = zip(self.datasets, self.maps, strict=True)
        own = [d.labels if labels is None else labels[d.labels] for d, labels in sets]
        return np.array([own[k][i] for k, i in self.places.tolist()], np.int64)

    @cached_property
    def domains(self) -> list[str]:
        """The domain of each image."""
        return [self.datasets[k].identify(i)[1] for k, i in self.places.tolist()]

    @cached_property
    def content(self) -> tuple[str, ...]:
        """Digests of a few images of each set, for names alone do not tell two sets apart; an empty
        one where an image cannot be read.
        """
        sets = {id(d.originals): d.originals for d in self.datasets}
        return tuple(_digest(sources, i) for sources in sets.values() for i in _some(sources))

    def describe(self) -> dict[str, Any]:
        """The protocol facts, fit for JSON; `digest` tells two orders apart."""
        names, counts = np.unique(np.array(self.domains), return_counts=True)
        return {
            **asdict(self.options),
            "images": len(self),
            "datasets": [{"name": d.name, "split": d.split, "images": len(d),
                          "classes": len(d.classes)} for d in self.datasets],
            "domain_counts": dict(zip(names.tolist(), counts.tolist(), strict=True)),
            "classes": None if self.classes is None else len(self.classes),
            "changes": int((np.diff(self.labels) != 0).sum()),  # of the label, along the stream
            "digest": order_digest(map(self.identify, range(len(self)))),
        }  # fmt: skip


def order_digest(images: Iterable[tuple[str, str]]) -> str:
    """Tells two orders of images apart, each given by its id and domain."""
    order = "\n".join(f"{domain}\t{id}" for id, domain in images)
    return blake2b(order.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _some(sources: Sequence[Any]) -> list[int]:
    """Images to read: of a Parquet file one, for each takes a whole row group."""
    try:
        count = 1 if isinstance(sources[0], Row) else SAMPLE
    except Exception:  # as `_digest` finds, too
        count = SAMPLE
    places: list[int] = np.unique(np.linspace(0, len(sources) - 1, count, dtype=int)).tolist()
    return places


def _digest(sources: Sequence[Any], index: int) -> str:
    """Of an image as it is stored: the bytes of a file, else the pixels."""
    try:
        source = sources[index]
        while callable(source):
            source = source()
        if isinstance(source, str | os.PathLike):
            source = Path(source).read_bytes()
        picture = read_picture(source, lambda height, width: 8)  # raises if it is damaged
    except Exception:  # whatever a source raises; that is said when its turn comes
        return ""
    stored = source if isinstance(source, bytes) else picture.pixels.tobytes()
    return blake2b(stored, digest_size=8).hexdigest()


def other_images(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether two streams of the same names are of other images, by what is known of both.

    >>> other_images(["a", "b"], ["a", "c"]), other_images(["a", ""], ["a", "c"])
    (True, False)
    """
    known = len(mine) == len(theirs)
    return known and any(a and b and a != b for a, b in zip(mine, theirs, strict=True))


def check_limit(limit: int, every: Iterable[str], left: Iterable[str]) -> None:
    """Refuse a limit that leaves whole domains out, by the names before and after it."""
    if lost := sorted(set(every) - set(left)):
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise InputError(
            f"limit={limit} leaves no image of {', '.join(lost[:3])}{more}; give a larger "
            "one, fewer domains, or a stream that mixes them"
        )


def make_stream(
    data: Dataset | Sequence[Dataset] | Mapping[str, Dataset],
    options: StreamOptions | None = None,
    **changes: Any,
) -> Stream:
    """A stream over one or several sets.

    Args:
        data: a set, a list of sets, or sets by the name that their domain shall have.
        options: see `StreamOptions`; `changes` are its fields, by name.
    """
    options = build(StreamOptions, flat(options or StreamOptions()) | changes, "option of a stream")
    if isinstance(data, Mapping):
        sets = tuple(replace(d, domains=[name] * len(d)) for name, d in data.items())
    else:
        sets = (data,) if isinstance(data, Dataset) else tuple(data)
    if not sets or not all(len(d) for d in sets):
        raise InputError("a stream needs at least one data set, and an image in each of them")
    parts = _parts(sets)
    ordered = {name: _ordered(sets, places, options, n)
               for n, (name, places) in enumerate(parts.items())}  # fmt: skip
    places = _arranged(ordered, options)
    stream = Stream(sets, options, places[: options.limit], *_label_space(sets, options))
    if options.limit is not None and len(parts) > 1:
        check_limit(options.limit, parts, stream.domains)
    return stream


def _parts(sets: tuple[Dataset, ...]) -> dict[str, Ints]:
    """Places (M, 2) of each domain, in order of appearance."""
    parts: dict[str, Ints] = {}
    for k, data in enumerate(sets):
        names = np.array(data.domains if data.domains is not None else [data.name] * len(data))
        _, first = np.unique(names, return_index=True)
        for name in names[np.sort(first)].tolist():
            if name in parts:
                raise InputError(
                    f"two data sets have the domain {name!r}; give them one at a time, or in "
                    "Python as a mapping of domain names to data sets"
                )
            where = np.flatnonzero(names == name)
            parts[name] = np.stack([np.full_like(where, k), where], 1)
    return parts


def _label_space(sets: tuple[Dataset, ...], options: StreamOptions) -> Any:
    same = all(d.class_ids == sets[0].class_ids and d.classes == sets[0].classes for d in sets)
    if same:
        return (None,) * len(sets), sets[0].classes, sets[0].class_ids
    if options.labels == "own":
        return (None,) * len(sets), None, None
    names: dict[str, str] = {}
    for data in sets:
        for c, name in zip(data.class_ids, data.classes, strict=True):
            names.setdefault(c, name)
    rank = {c: i for i, c in enumerate(names)}
    maps = tuple(np.array([rank[c] for c in d.class_ids], np.int64) for d in sets)
    return maps, tuple(names.values()), tuple(names)


def _ordered(sets: tuple[Dataset, ...], places: Ints, o: StreamOptions, part: int) -> Ints:
    """The images of one domain, thinned and ordered."""
    rng = np.random.default_rng([o.seed, part])
    labels = sets[places[0, 0]].labels[places[:, 1]]
    if o.imbalance != "none":
        kept = _thin(labels, o, rng)
        places, labels = places[kept], labels[kept]
    if o.order == "listed":
        return places
    if o.order == "class-ordered":
        return places[np.argsort(labels, kind="stable")]
    if o.order == "shuffled":
        return places[rng.permutation(len(places))]
    return places[correlated(labels, o.delta, rng)]


def _thin(labels: Ints, o: StreamOptions, rng: np.random.Generator) -> Ints:
    """Indices of the images that stay, ascending."""
    classes, counts = np.unique(labels, return_counts=True)
    rank = rng.permutation(len(classes))
    top = max(len(classes) - 1, 1)
    if o.imbalance == "exponential":
        share = o.ratio ** (-rank / top)
    else:
        share = (rank + 1.0) ** (-np.log(o.ratio) / np.log(top + 1))
    want = np.minimum(counts, np.maximum(np.rint(counts.max() * share), 1)).astype(int)
    return np.sort(np.concatenate([
        rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, want, strict=True)
    ]))  # fmt: skip


def correlated(labels: Ints, delta: float, rng: np.random.Generator) -> Ints:
    """Dirichlet order: the first of TRIES draws whose chunks are all filled, else the best one."""
    classes, counts = np.unique(labels, return_counts=True)
    chunks, share = len(classes), len(labels) / len(classes)
    enough = min(10, share / 2)
    best, least = np.zeros((chunks, chunks), np.int64), -1
    for _ in range(TRIES):
        held = np.zeros(chunks, np.int64)
        sizes = np.zeros((chunks, chunks), np.int64)  # images of a class (row) in a chunk
        proportions = rng.dirichlet(np.full(chunks, delta), size=chunks)
        for c in rng.permutation(chunks):
            p = proportions[c] * (held < share)
            if not p.sum():  # all of it lies in full chunks: draw anew, for those with room
                room = np.flatnonzero(held < share)
                p[room] = rng.dirichlet(np.full(len(room), delta))
            ends = (p.cumsum() / p.sum() * counts[c]).astype(int)
            ends[-1] = counts[c]
            sizes[c] = np.diff(ends, prepend=0)
            held += sizes[c]
        if held.min() > least:
            best, least = sizes, int(held.min())
        if least >= enough:
            break
    # By class, then drawn at random within it, images take their chunks from left to right.
    by_class = np.lexsort((rng.random(len(labels)), labels))
    block = np.repeat(np.arange(chunks * chunks), best.ravel())  # class · chunks + chunk
    turn = rng.random(chunks * chunks)  # of a class among the blocks of its chunk
    order: Ints = by_class[np.lexsort((block, turn[block], block % chunks))]
    return order


def another_order(
    facts: Mapping[str, Any], labels: Ints, domains: Callable[[], Sequence[str]], seed: int
) -> Ints:
    """The images of a stream in another order of the same kind.

    Domains stay where they are, if they come one after the other, and classes together, if the
    `facts` (`Stream.describe`) say that they do; of anything else it is a shuffle.
    """
    rng = np.random.default_rng(seed)
    parts = [np.arange(len(labels))]
    if len(facts.get("domain_counts", ())) > 1:
        names = np.array(domains())
        ends = np.flatnonzero(names[1:] != names[:-1]) + 1
        if facts.get("domains") == "gradual" or len(ends) + 1 == len(set(names.tolist())):
            parts = np.split(parts[0], ends)
    ordered = []
    for part in parts:
        if facts.get("order") == "correlated":
            ordered.append(part[correlated(labels[part], facts["delta"], rng)])
            continue
        part = part[rng.permutation(len(part))]
        if facts.get("order") == "class-ordered":
            turn = rng.permutation(int(labels[part].max(initial=0)) + 1)
            part = part[np.argsort(turn[labels[part]], kind="stable")]
        ordered.append(part)
    return np.concatenate(ordered)


def _arranged(parts: dict[str, Ints], o: StreamOptions) -> Ints:
    """The domains put together."""
    if o.domains == "sequence":
        return np.concatenate(list(parts.values()))
    if o.domains == "mixed":
        rng = np.random.default_rng([o.seed, len(parts), 1])
        turn = rng.permutation(np.repeat(np.arange(len(parts)), [len(p) for p in parts.values()]))
        out = np.empty((len(turn), 2), np.int64)
        for i, places in enumerate(parts.values()):
            out[turn == i] = places
        return out
    return np.concatenate([parts[name] for name in gradual(list(parts))])


def gradual(names: list[str]) -> list[str]:
    """Domains "type/severity", type by type, severity up and down again."""
    types: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        kind, _, level = name.rpartition("/")
        if not kind or not level.isdigit():
            raise InputError(
                f"domain {name!r} has no severity; a gradual stream needs domains such as fog/3, "
                "as the corrupted sets with severity=1-5 have"
            )
        types.setdefault(kind, []).append((int(level), name))
    return [n for steps in types.values() for _, n in [*sorted(steps), *sorted(steps)[-2::-1]]]
