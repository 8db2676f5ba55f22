"""The lab: the streams that studies look at, and their runs, each done once.

The studies call the three methods that go by ADTE's name by the constants here, and only by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from adte.core.errors import InputError, StateError
from adte.core.loading import DEFAULT_MODEL, Loading
from adte.core.machine import head_device
from adte.evaluate.features.cache import Cache, bundle
from adte.evaluate.features.stream import FeatureStream, Held, Tick, narrowed, part, silent
from adte.evaluate.running.protocol import BATCH, Protocol
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import Outcome, Task, key_of, run_tasks
from adte.methods import create_method
from adte.models import Model
from adte.models.loading import load_with
from adte.models.prompts import Prompts, class_weights

__all__ = [
    "ADTE", "BLOCKS", "CROSS", "FAMILY", "OURS", "PAPER", "PRESETS", "RELEASED", "Lab", "Rival",
    "Settings", "in_turn", "interleaved",
]  # fmt: skip

T = TypeVar("T")
Rival = tuple[str, dict[str, Any]]  # a method and its options
Streams = dict[str, FeatureStream]

PAPER = "adte"  # ADTE as the paper writes it: the rows "ADTE" of its tables
RELEASED = "adte-released"  # as its authors' code computes it
OURS = "tilt"  # the default of this project
ADTE: dict[str, Rival] = {  # rows of every table that has a row "ADTE"
    "ADTE": (PAPER, {}),
    "ADTE, released code": (RELEASED, {}),
    f"{OURS}, our default": (OURS, {}),
}

# Data sets by our name, and the columns that the paper has for them.
FAMILY = {"imagenet": "IN", "imagenet-v2": "IN-V2", "imagenet-sketch": "IN-K",
          "imagenet-a": "IN-A", "imagenet-r": "IN-R"}  # fmt: skip
CROSS = {"pets": "Pets", "flowers": "Flow", "aircraft": "Airc", "dtd": "DTD", "eurosat": "Euro",
         "cars": "Cars", "food101": "Food", "sun397": "SUN", "caltech101": "Calt",
         "ucf101": "UCF"}  # fmt: skip
# In small: the bundle's photographs, and four shifts for the variants of ImageNet.
SHIFTS = ("brightness/3", "motion_blur/3", "impulse_noise/3", "glass_blur/3")
BLOCKS = {"ViT-B-16/openai": "ViT-B/16", "ViT-L-14/openai": "ViT-L/14"}

# How much of the data a study takes: images of each stream, of those for methods that tune prompts,
# and seeds; None is all.
PRESETS: dict[str, dict[str, int | None]] = {
    "small": {"images": None, "tuned": 16, "seeds": 3},
    "tiny": {"images": 40, "tuned": 2, "seeds": 2},  # for a quick look, and for tests
    "full": {"images": None, "tuned": None, "seeds": 3},
}


@dataclass(frozen=True, kw_only=True)
class Settings(Loading):
    """Everything that decides what studies run on, as plain data that can be sent to a worker.

    Attributes:
        images: of each stream; tuned: of it, for methods that tune prompts, which are slow; None
            takes all.
        seeds: how many runs the paper's figures are means of.
        protocol: how methods that learn see a stream; skip: methods whose rows are left out.
        caches: data-set name → cache folders, one per seed or one for all; empty for the embedded
            bundles.
        described: the sets whose caches also hold class weights from descriptions.
        block: the paper's model that this is, if its published weights were loaded; else `unlike`
            says why not.
        model: behind the caches, as they say; loaded where a method needs a tower.
        batch: images per call of a method, None for the usual number.
        runs: the folder of finished runs, so that nothing is run twice.
    """

    images: int | None = None
    tuned: int | None = 16
    seeds: int = 3
    protocol: Protocol = "online"
    skip: tuple[str, ...] = ()
    caches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    described: tuple[str, ...] = ()
    block: str | None = None
    unlike: str = "another model and other data, for orientation"
    model: str = DEFAULT_MODEL
    batch: int | None = None
    runs: str | None = None

    @property
    def small(self) -> bool:
        """Whether these are the embedded model and its bundles."""
        return not self.caches

    @property
    def draws(self) -> str:
        """What a seed draws, in words."""
        redrawn = not self.small and min(map(len, self.caches.values())) >= self.seeds
        return "crops and order" if redrawn else "the order alone (crops as they are cached)"


@dataclass
class Lab:
    """Streams and runs for the studies.

    Without caches it is the embedded model with its bundles, the paper in small. With them it is
    the paper at its own size, or on other data.

    Attributes:
        seed: of the order of every stream, and of the crops where caches were made for each.
        described: whether classes have descriptions (CuPL's) in place of templates.
        shared: what is loaded, made and run; labs of other seeds have the same.
    """

    settings: Settings = Settings()
    seed: int = 0
    described: bool = False
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)
    tick: Tick = silent

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """A thing that is made when it is first needed."""
        if key not in self.shared:
            self.shared[key] = make()
        made: T = self.shared[key]
        return made

    # ------------------------------------------------------------------ streams

    @property
    def small(self) -> bool:
        return self.settings.small

    @property
    def model(self) -> Model:
        """The model behind the streams, for methods that need a tower."""
        name = "tiny-longtail" if self.small else self.settings.model
        return self.once("model", lambda: load_with(self.settings.loading, name))

    def sets(self) -> dict[str, Cache]:
        """The user's data sets by name; of those with descriptions, where they are asked for."""
        s = self.settings
        prompts = "cupl" if self.described else "default"

        def opened(name: str) -> Cache:
            folders = s.caches[name]
            cache = Cache(folders[min(self.seed, len(folders) - 1)], prompts)
            if s.device:  # batches follow the class weights
                cache.class_weights = cache.class_weights.to(head_device(s.device))
            return cache

        names: Iterable[str] = s.described if self.described else s.caches
        return self.once(
            ("sets", prompts, self.seed), lambda: {name: opened(name) for name in names}
        )

    def bundle(self, name: str) -> Held:
        """An embedded bundle (replay, shifts, second), held in memory."""

        def held() -> Held:
            cache = Cache(bundle(name))
            if self.described:
                prompts = Prompts.of("single", "tiny-imagenet")
                cache.class_weights = class_weights(self.model, cache.classes, prompts)
                cache.recipe = replace(cache.recipe, prompts=prompts.describe())
            return Held.of(cache)

        return self.once(("bundle", name, self.described), held)

    def main(self) -> FeatureStream:
        """The stream that stands for ImageNet."""
        return next(iter(self.family().values()))

    @property
    def main_is_imagenet(self) -> bool:
        """Whether that stream is the paper's own."""
        return not self.small and next(iter(self.family())) == "IN"

    def family(self) -> Streams:
        """ImageNet and its variants by column; on other data, sets that are not cross-domain."""
        if self.small:
            shifts = self.shifts()
            named: Streams = {name.partition("/")[0]: shifts[name] for name in SHIFTS}
            return self.first({"photographs": self.bundle("replay"), **named})
        sets = self.sets()
        known: Streams = {c: sets[name] for name, c in FAMILY.items() if name in sets}
        known = known or {n: s for n, s in sets.items() if n not in CROSS}
        return self.first(
            known if self.described else require(known, "ImageNet or a variant of it")
        )

    def imagenet_a(self) -> FeatureStream:
        """ImageNet-A, or what stands for ImageNet where it is not given."""
        return self.family().get("IN-A") or self.main()

    def cross(self) -> Streams:
        """The ten cross-domain sets; in small, ten label spaces of twenty classes of the bundle, by
        WordNet order, so that neighbours are alike.
        """
        if not self.small:
            sets = self.sets()
            return self.first({c: sets[n] for n, c in CROSS.items() if n in sets})

        def cut() -> Streams:
            held = self.bundle("replay")
            edges = np.linspace(0, len(held.classes), 11).astype(int).tolist()
            return {
                f"{held.classes[a]} …": Held.of(narrowed(held, range(a, b), f"classes {a}–{b - 1}"))
                for a, b in pairwise(edges)
            }

        return self.first(self.once(("cross", self.described), cut))

    def shifts(self) -> Streams:
        """The domains of the embedded bundle of shifts as streams of their own."""
        key = ("shifts", self.described)
        return self.first(self.once(key, lambda: domains_of(self.bundle("shifts"))))

    def corrupted(self, name: str) -> Streams:
        """The domains "type/severity" of a corrupted set; in small, of the bundle of shifts."""
        if self.small:
            return self.shifts()
        require({n: s for n, s in self.sets().items() if n == name}, f"the set {name!r}")
        return self.first(
            self.once(
                ("domains", name, self.seed, self.described), lambda: domains_of(self.sets()[name])
            )
        )

    def first(self, streams: Streams) -> Streams:
        """As many images of each stream as the settings say."""
        return {n: s.first(self.settings.images) for n, s in streams.items()}

    # ------------------------------------------------------------------ runs

    def run(
        self, stream: FeatureStream, method: str, protocol: Protocol | None = None, **options: Any
    ) -> Outcome:
        """One run, done once however many studies ask for it."""
        made, s = create_method(method, **options), self.settings
        if "text tower" in made.needs:
            self.with_tower(stream)
        seed = self.seed if made.stateful else 0  # without state an order changes nothing
        task = Task(method, options, protocol or s.protocol, seed)
        kept = None if s.runs is None else self.once("results", lambda: Results(str(s.runs)))

        def run() -> Outcome:
            (outcome,) = run_tasks(stream, [task], kept, self.tick, batch=s.batch or BATCH)
            return outcome

        return self.once(key_of(stream, task), run)

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
        return {name: rival for name, rival in rivals.items() if rival[0] not in self.settings.skip}

    def setting(self, streams: Iterable[FeatureStream], protocol: Protocol | None = None) -> str:
        """What a study ran on, in words."""
        every = list(streams)
        images = _span([len(s) for s in every])
        views = _span([s.recipe.views.count for s in every])
        few = f"{len(every)} streams of " if len(every) > 1 else ""
        how = protocol or self.settings.protocol
        return f"{every[0].recipe.model}, {few}{images} images, {views} views, {how}"


def require(streams: Streams, what: str) -> Streams:
    """Refuse a study that has nothing to look at."""
    if not streams:
        raise InputError(
            f"this study needs {what}, and none was given; name them as in "
            "--data imagenet:PATH, or leave --data out for the study in small"
        )
    return streams


def _span(numbers: Sequence[int]) -> str:
    """As in 16–64, or 64 if all are the same."""
    return "–".join(map(str, sorted({min(numbers), max(numbers)})))


def domains_of(stream: FeatureStream) -> Streams:
    """The domains of a stream as streams of their own."""
    domains = np.array(stream.domains)
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
