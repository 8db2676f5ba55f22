"""The lab: the streams that studies look at, and their runs, each done once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.errors import InputError
from adte.evaluate.cache import Cache
from adte.evaluate.features import Encoded, FeatureStream, Held
from adte.evaluate.results import Results
from adte.evaluate.runner import Protocol
from adte.evaluate.tasks import Outcome, Task, key_of, run_tasks
from adte.models import Model, load_model
from adte.prompts import Prompts, class_weights

__all__ = [
    "CROSS",
    "FAMILY",
    "PRESETS",
    "Fewer",
    "Lab",
    "Narrowed",
    "Preset",
    "first",
    "interleaved",
    "part",
]

# Data sets by our name, and the columns that the paper has for them.
FAMILY = {
    "imagenet": "IN",
    "imagenet-v2": "IN-V2",
    "imagenet-sketch": "IN-K",
    "imagenet-a": "IN-A",
    "imagenet-r": "IN-R",
}
CROSS = {
    "pets": "Pets",
    "flowers": "Flow",
    "aircraft": "Airc",
    "dtd": "DTD",
    "eurosat": "Euro",
    "cars": "Cars",
    "food101": "Food",
    "sun397": "SUN",
    "caltech101": "Calt",
    "ucf101": "UCF",
}
# What stands for the variants of ImageNet in small: the bundle's photographs, and four shifts.
SHIFTS = ("brightness/3", "motion_blur/3", "impulse_noise/3", "glass_blur/3")
BLOCKS = {"ViT-B-16/openai": "ViT-B/16", "ViT-L-14/openai": "ViT-L/14"}


@dataclass(frozen=True)
class Preset:
    """How much of the data a study takes."""

    images: int | None = None  # of each stream; None for all
    tuned: int | None = None  # for methods that tune prompts, which are slow
    seeds: int = 3


PRESETS = {
    "small": Preset(images=None, tuned=16, seeds=3),
    "tiny": Preset(images=40, tuned=2, seeds=2),  # for a quick look, and for tests
    "full": Preset(),
}


@dataclass
class Lab:
    """Streams and runs for the studies.

    Without `sets` it is the embedded model with its bundles, the paper in small. With them, caches
    of the user's own data by data-set name, it is the paper at its own size, or on other data.

    Attributes:
        adte: which variant stands for ADTE; protocol: how methods that learn see a stream.
    """

    sets: Mapping[str, Cache] = field(default_factory=dict)
    described: Mapping[str, Cache] = field(default_factory=dict)  # the same with CuPL prompts
    preset: Preset = PRESETS["small"]
    adte: str = "adte"
    protocol: Protocol = "online"
    results: Results | None = None
    tick: Callable[[], None] = lambda: None
    device: str | None = None  # of the embedded model
    _held: dict[str, Held] = field(default_factory=dict, repr=False)
    _made: dict[str, dict[str, FeatureStream]] = field(default_factory=dict, repr=False)
    _done: dict[str, Outcome] = field(default_factory=dict, repr=False)

    # ------------------------------------------------------------------ streams

    @property
    def small(self) -> bool:
        """Whether this is the embedded model and its bundles."""
        return not self.sets

    @property
    def block(self) -> str | None:
        """Which of the paper's models ours is, if any."""
        if self.small:
            return None
        return BLOCKS.get(str(next(iter(self.sets.values())).facts["model"]))

    def bundle(self, name: str, described: bool = False) -> Held:
        """An embedded bundle (replay, shifts, second), held in memory."""
        key = f"{name} described" if described else name
        if key not in self._held:
            folder = Path(str(resources.files("adte") / "assets" / name))
            cache = Cache(folder, model=self.tiny if name != "second" else None)
            if described:
                prompts = Prompts.of("single", "tiny-imagenet")
                cache.class_weights = class_weights(self.tiny, cache.classes, prompts)
                cache.facts = {**cache.facts, "prompts": prompts.describe()}
            self._held[key] = Held.of(cache)
        return self._held[key]

    @cached_property
    def tiny(self) -> Model:
        """The embedded model."""
        model: Model = load_model("tiny", device=self.device)
        return model

    def main(self, described: bool = False) -> FeatureStream:
        """The stream that stands for ImageNet."""
        family = self.require(self.family(described), "ImageNet or a variant of it")
        return next(iter(family.values()))

    def main_is(self, column: str) -> bool:
        """Whether that stream is the paper's own of this column."""
        return not self.small and next(iter(self.family()), "") == column

    def family(self, described: bool = False) -> dict[str, FeatureStream]:
        """ImageNet and its variants by column; on other data, whatever sets there are."""
        if self.small:
            shifts = self.by_domain("shifts", described)
            out: dict[str, FeatureStream] = {"photographs": self.bundle("replay", described)}
            out |= {name.partition("/")[0]: shifts[name] for name in SHIFTS}
            return self._limited(out)
        sets = self.described if described else self.sets
        known = {column: sets[name] for name, column in FAMILY.items() if name in sets}
        return self._limited(known or {n: s for n, s in sets.items() if n not in CROSS})

    def cross(self, described: bool = False) -> dict[str, FeatureStream]:
        """The ten cross-domain sets; in small, ten themes of twenty classes each."""
        if self.small:
            return self.groups(10, described)
        sets = self.described if described else self.sets
        return self._limited({c: sets[n] for n, c in CROSS.items() if n in sets})

    def groups(self, count: int, described: bool = False) -> dict[str, FeatureStream]:
        """The bundle cut into label spaces by WordNet order, so neighbours are alike."""

        def cut() -> dict[str, FeatureStream]:
            held = self.bundle("replay", described)
            edges = np.linspace(0, len(held.classes), count + 1).astype(int).tolist()
            return {
                f"{held.classes[a]} …": Held.of(Narrowed(held, range(a, b), f"classes {a}–{b - 1}"))
                for a, b in pairwise(edges)
            }

        return self._once(f"{count} groups {described}", cut)

    def by_domain(self, name: str = "shifts", described: bool = False) -> dict[str, FeatureStream]:
        """A bundle's domains as streams of their own."""
        return self._once(
            f"domains {name} {described}", lambda: domains_of(self.bundle(name, described))
        )

    def split(self, name: str) -> dict[str, FeatureStream]:
        """The domains of one of the user's sets as streams of their own."""
        if name not in self.sets:
            return {}
        return self._once(f"domains {name}", lambda: domains_of(self.sets[name]))

    def _once(
        self, key: str, make: Callable[[], dict[str, FeatureStream]]
    ) -> dict[str, FeatureStream]:
        if key not in self._made:
            self._made[key] = make()
        return self._limited(self._made[key])

    def _limited(self, streams: Mapping[str, FeatureStream]) -> dict[str, FeatureStream]:
        return {n: first(s, self.preset.images) for n, s in streams.items()}

    def require(self, streams: dict[str, FeatureStream], what: str) -> dict[str, FeatureStream]:
        """Refuse a study that has nothing to look at."""
        if not streams:
            raise InputError(
                f"this study needs {what}, and none was given; name them as in "
                "--data imagenet:PATH, or leave --data out for the study in small"
            )
        return streams

    # ------------------------------------------------------------------ runs

    def run(
        self,
        stream: FeatureStream,
        method: str,
        protocol: Protocol | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Outcome:
        """One run, done once however many studies ask for it."""
        task = Task(method, options, protocol or self.protocol, seed)
        key = key_of(stream, task)
        if key not in self._done:
            (self._done[key],) = run_tasks(stream, [task], self.results, self.tick)
        return self._done[key]

    def accuracy(self, stream: FeatureStream, method: str, **options: Any) -> float:
        return float(self.run(stream, method, **options).record["metrics"]["accuracy"])

    def seeded(self, stream: FeatureStream, method: str, **options: Any) -> list[float]:
        """Accuracies over the preset's seeds."""
        seeds = range(self.preset.seeds)
        return [self.accuracy(stream, method, seed=s, **options) for s in seeds]

    def setting(self, streams: Mapping[str, FeatureStream] | Sequence[FeatureStream]) -> str:
        """What a study ran on, in words."""
        every = list(streams.values() if isinstance(streams, Mapping) else streams)
        sizes = sorted({len(s) for s in every})
        images = "–".join(str(n) for n in dict.fromkeys((sizes[0], sizes[-1])))
        one = every[0]
        views = one.facts.get("views", {}).get("count", "?")
        few = f"{len(every)} streams of " if len(every) > 1 else ""
        return f"{one.facts['model']}, {few}{images} images, {views} views, {self.protocol}"


def part(stream: FeatureStream, order: np.ndarray[Any, Any], name: str) -> FeatureStream:
    """Some images of a stream, as a stream that says so."""
    out = stream.ordered(order)
    out.facts = {**stream.facts, "part": f"{stream.facts.get('part', '')} {name}".strip()}
    return out


def domains_of(stream: FeatureStream) -> dict[str, FeatureStream]:
    """The domains of a stream as streams of their own."""
    domains = np.array([e.domain for e in stream.encoded()])
    return {
        str(d): part(stream, np.flatnonzero(domains == d), str(d))
        for d in dict.fromkeys(domains.tolist())
    }


def first(stream: FeatureStream, count: int | None) -> FeatureStream:
    """The first images; all of them for None."""
    if count is None or count >= len(stream):
        return stream
    return part(stream, np.arange(count), f"first {count}")


class Narrowed(FeatureStream):
    """The images of some classes, in a label space of those alone."""

    def __init__(self, stream: FeatureStream, classes: Sequence[int], name: str) -> None:
        self.new = {int(c): i for i, c in enumerate(classes)}
        mine = np.flatnonzero(np.isin(stream.labels, list(self.new)))
        self.inner, self.model = stream.ordered(mine), stream.model
        self.class_weights = stream.class_weights[list(self.new)]
        inner = f"{stream.facts.get('part', '')} {name} {sorted(self.new)}"
        self.facts = {**stream.facts, "part": inner.strip()}
        for key in ("classes", "class_ids", "frequency"):
            if stream.facts.get(key) is not None:
                self.facts[key] = [stream.facts[key][c] for c in self.new]

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([self.new[int(c)] for c in self.inner.labels], dtype=np.int64)

    def ordered(self, order: NDArray[np.int64]) -> Narrowed:
        copy = object.__new__(Narrowed)
        copy.__dict__.update(self.__dict__, inner=self.inner.ordered(order))
        return copy

    def encoded(self) -> Iterator[Encoded]:
        for e in self.inner.encoded():
            yield replace(e, label=self.new[e.label])


class Fewer(FeatureStream):
    """The same images with their first views alone; the base view is among them."""

    def __init__(self, stream: FeatureStream, views: int) -> None:
        self.inner, self.model, self.views = stream, stream.model, views
        self.class_weights = stream.class_weights
        said = {**stream.facts.get("views", {}), "count": views}
        self.facts = {**stream.facts, "views": said}

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.inner.labels

    def ordered(self, order: NDArray[np.int64]) -> Fewer:
        return Fewer(self.inner.ordered(order), self.views)

    def encoded(self) -> Iterator[Encoded]:
        for e in self.inner.encoded():
            yield replace(e, features=e.features[: self.views])


def interleaved(streams: Mapping[str, FeatureStream], seed: int = 0) -> Held:
    """Several streams of one label space shuffled into one; the domain says whose an image is."""
    samples, names = [], []
    for column, stream in streams.items():
        for pair in stream:
            samples.append(pair)
        names += [(id, column, group) for id, _, group in stream.seen]
    one = next(iter(streams.values()))
    parts = {c: [s.facts.get("part"), s.facts.get("data")] for c, s in streams.items()}
    facts = {**one.facts, "part": f"seed {seed}, {parts}"}
    held = Held(samples, facts, names, one.model)
    return held.ordered(np.random.default_rng(seed).permutation(len(held)))
