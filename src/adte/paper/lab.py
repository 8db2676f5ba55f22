"""The lab: the streams that studies look at, and their runs, each done once.

The studies call the three methods that go by ADTE's name by the constants here, and only by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from adte.core.errors import InputError, StateError
from adte.core.loading import Loading
from adte.evaluate.features.cache import Cache, bundle
from adte.evaluate.features.stream import FeatureStream, Held, Narrowed, Tick, part, silent
from adte.evaluate.running.protocol import BATCH, Protocol
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import Outcome, Task, key_of, run_tasks
from adte.methods import create_method
from adte.models import Model
from adte.models.loading import load_with
from adte.models.prompts import Prompts, class_weights

__all__ = [
    "ADTE", "BLOCKS", "CROSS", "FAMILY", "OURS", "PAPER", "PRESETS", "RELEASED", "Lab", "Preset",
    "Rival", "in_turn", "interleaved",
]  # fmt: skip

Rival = tuple[str, dict[str, Any]]  # a method and its options

PAPER = "adte"  # ADTE as the paper writes it: the rows "ADTE" of its tables
RELEASED = "adte-released"  # as its authors' code computes it
OURS = "tilt"  # the default of this project
ADTE: dict[str, Rival] = {  # rows of every table that has a row "ADTE"
    "ADTE": (PAPER, {}),
    "ADTE, released code": (RELEASED, {}),
    f"{OURS}, our default": (OURS, {}),
}

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
        seed: of the order of every stream; `redrawn` says whether the sets have crops of it too.
        skip: methods whose rows are left out; protocol: how methods that learn see a stream.
        block: which of the paper's models ours is, if its published weights were loaded; else
            `unlike` says why not.
        loading: how the model is loaded, when a method first needs a tower.
        batch: images per call of a method; None for the usual number.
    """

    sets: Mapping[str, Cache] = field(default_factory=dict)
    described: Mapping[str, Cache] = field(default_factory=dict)  # the same with CuPL prompts
    preset: Preset = PRESETS["small"]
    skip: Collection[str] = ()
    protocol: Protocol = "online"
    seed: int = 0
    redrawn: bool = False
    block: str | None = None
    unlike: str = ""
    results: Results | None = None
    tick: Tick = silent
    loading: Loading = Loading()  # noqa: RUF009
    batch: int | None = None
    _loaded: dict[str, Model] = field(default_factory=dict, repr=False)
    _held: dict[str, Held] = field(default_factory=dict, repr=False)
    _made: dict[str, dict[str, FeatureStream]] = field(default_factory=dict, repr=False)
    _done: dict[str, Outcome] = field(default_factory=dict, repr=False)

    # ------------------------------------------------------------------ streams

    @property
    def small(self) -> bool:
        """Whether this is the embedded model and its bundles."""
        return not self.sets

    def another(self, seed: int, sets: Mapping[str, Cache], described: Mapping[str, Cache]) -> Lab:
        """The same for another seed; what is loaded and what was run is shared."""
        out = copy(self)
        out.seed, out.sets, out.described, out._made = seed, sets, described, {}
        return out

    @property
    def draws(self) -> str:
        """What a seed of this lab draws, in words."""
        return "crops and order" if self.redrawn else "the order alone (crops as they are cached)"

    @property
    def _model_name(self) -> str:
        return "tiny-longtail" if self.small else next(iter(self.sets.values())).recipe.model

    @property
    def model(self) -> Model:
        """The model behind the streams, for methods that need a tower."""
        if "model" not in self._loaded:
            self._loaded["model"] = load_with(self.loading, self._model_name)
        return self._loaded["model"]

    def bundle(self, name: str, described: bool = False) -> Held:
        """An embedded bundle (replay, shifts, second), held in memory."""
        key = f"{name} described" if described else name
        if key not in self._held:
            cache = Cache(bundle(name))
            if described:
                prompts = Prompts.of("single", "tiny-imagenet")
                cache.class_weights = class_weights(self.model, cache.classes, prompts)
                cache.recipe = replace(cache.recipe, prompts=prompts.describe())
            self._held[key] = Held.of(cache)
        return self._held[key]

    def main(self, described: bool = False) -> FeatureStream:
        """The stream that stands for ImageNet."""
        family = self.require(self.family(described), "ImageNet or a variant of it")
        return next(iter(family.values()))

    @property
    def main_is_imagenet(self) -> bool:
        """Whether that stream is the paper's own."""
        return not self.small and next(iter(self.family()), "") == "IN"

    def family(self, described: bool = False) -> dict[str, FeatureStream]:
        """ImageNet and its variants by column; on other data, whatever sets there are."""
        if self.small:
            shifts = self.shifts(described)
            out: dict[str, FeatureStream] = {"photographs": self.bundle("replay", described)}
            out |= {name.partition("/")[0]: shifts[name] for name in SHIFTS}
            return self._limited(out)
        sets = self.described if described else self.sets
        known = {column: sets[name] for name, column in FAMILY.items() if name in sets}
        return self._limited(known or {n: s for n, s in sets.items() if n not in CROSS})

    def cross(self, described: bool = False) -> dict[str, FeatureStream]:
        """The ten cross-domain sets; in small, ten themes of twenty classes each."""
        if self.small:
            return self.groups(described)
        sets = self.described if described else self.sets
        return self._limited({c: sets[n] for n, c in CROSS.items() if n in sets})

    def groups(self, described: bool = False) -> dict[str, FeatureStream]:
        """The bundle cut into ten label spaces by WordNet order, so neighbours are alike."""

        def cut() -> dict[str, FeatureStream]:
            held = self.bundle("replay", described)
            edges = np.linspace(0, len(held.classes), 11).astype(int).tolist()
            return {
                f"{held.classes[a]} …": Held.of(Narrowed(held, range(a, b), f"classes {a}–{b - 1}"))
                for a, b in pairwise(edges)
            }

        return self._once(f"groups {described}", cut)

    def shifts(self, described: bool = False) -> dict[str, FeatureStream]:
        """The domains of the embedded bundle of shifts as streams of their own."""
        return self._once(
            f"shifts {described}", lambda: domains_of(self.bundle("shifts", described))
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
        return {n: s.first(self.preset.images) for n, s in streams.items()}

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
        **options: Any,
    ) -> Outcome:
        """One run, done once however many studies ask for it."""
        made = create_method(method, **options)
        if "text tower" in made.needs:
            self.with_tower(stream)
        seed = self.seed if made.stateful else 0  # without state an order changes nothing
        task = Task(method, options, protocol or self.protocol, seed)
        key = key_of(stream, task)
        if key not in self._done:
            (self._done[key],) = run_tasks(
                stream, [task], self.results, self.tick, batch=self.batch or BATCH
            )
        return self._done[key]

    def with_tower(self, stream: FeatureStream) -> FeatureStream:
        """The stream with its model, which caches are opened without."""
        if stream.model is None:
            made = stream.recipe
            if self.model.fingerprint != made.fingerprint:
                raise StateError(
                    f"the features are of model {made.model!r} (fingerprint {made.fingerprint}), "
                    f"but {self.model.name!r} has other weights ({self.model.fingerprint}); name "
                    "the weights that made them, or extract anew"
                )
            stream.model = self.model
        return stream

    def accuracy(self, stream: FeatureStream, method: str, **options: Any) -> float:
        return float(self.run(stream, method, **options).record.metrics["accuracy"])

    def wanted(self, rivals: Mapping[str, Rival]) -> dict[str, Rival]:
        """Those whose method is not skipped."""
        return {name: rival for name, rival in rivals.items() if rival[0] not in self.skip}

    def setting(self, streams: Mapping[str, FeatureStream] | Sequence[FeatureStream]) -> str:
        """What a study ran on, in words."""
        every = list(streams.values() if isinstance(streams, Mapping) else streams)
        images = _span([len(s) for s in every])
        views = _span([s.recipe.views.count for s in every])
        few = f"{len(every)} streams of " if len(every) > 1 else ""
        model = every[0].recipe.model
        return f"{model}, {few}{images} images, {views} views, {self.protocol}"


def _span(numbers: Sequence[int]) -> str:
    """As in 16–64, or 64 if all are the same."""
    return "–".join(map(str, sorted({min(numbers), max(numbers)})))


def domains_of(stream: FeatureStream) -> dict[str, FeatureStream]:
    """The domains of a stream as streams of their own."""
    domains = np.array([i.domain for i in stream.images()])
    return {
        str(d): part(stream, np.flatnonzero(domains == d), str(d))
        for d in dict.fromkeys(domains.tolist())
    }


def interleaved(streams: Mapping[str, FeatureStream], seed: int = 0) -> Held:
    """Several streams of one label space shuffled into one; the domain says whose an image is."""
    held = in_turn(streams, list(streams), f"seed {seed}")
    return held.ordered(np.random.default_rng(seed).permutation(len(held)))


def in_turn(streams: Mapping[str, FeatureStream], turns: Sequence[str], name: str) -> Held:
    """Streams of one label space one after the other, some perhaps again."""
    images = [i._replace(domain=turn) for turn in turns for i in streams[turn].images()]
    one = streams[turns[0]]
    parts = {c: [s.recipe.part, s.recipe.data] for c, s in streams.items()}
    recipe = replace(one.recipe, part=f"{name}, {parts}")
    return Held(images, recipe, one.class_weights, one.model)
