"""Conduct studies: one after another or side by side, with their runs kept."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from adte.core.errors import AdteError, InputError, unknown
from adte.core.loading import DEFAULT_MODEL, Loading
from adte.core.machine import head_device
from adte.data import load_dataset
from adte.evaluate.features.cache import Cache, begun, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import Tick, silent
from adte.evaluate.running.protocol import Protocol
from adte.evaluate.running.results import Results
from adte.evaluate.source import Source
from adte.images import Views
from adte.methods import create_method
from adte.models import Model
from adte.models.get import check_published
from adte.models.loading import load_with
from adte.models.prompts import Prompts
from adte.paper.comparisons import TUNERS
from adte.paper.lab import BLOCKS, CROSS, PRESETS, Lab, Preset
from adte.paper.robustness import robust_facts
from adte.paper.study import Finding, Study, find_study, studies

__all__ = [
    "PUBLISHED", "Settings", "chosen", "conduct", "descriptions_of", "facts", "planned", "prepare",
]  # fmt: skip

PUBLISHED = {"enlarge": 0.0}  # of the views: the paper crops however small an image is
# What takes longest goes first, so that workers end together.
SLOW = ("ood", "cross-domain", "deyo", "unimodal", "multilabel", "robust", "cost")


@dataclass(frozen=True, kw_only=True)
class Settings(Loading):
    """Everything that decides what a lab holds; plain data, so that a worker can be told.

    Attributes:
        caches: data-set name → cache folders, one per seed or one for all; empty for the embedded
            bundles.
        described: the sets whose caches also hold class weights from descriptions.
        seeds: how many runs the paper's figures are means of; None for the preset's number.
        limit: of images of each set.
        skip: methods whose rows are left out.
        block: the paper's model that this is, if its published weights were loaded; else `unlike`
            says why not.
        model: behind the caches, as they say; loaded where a method needs a tower.
        batch: images per call of a method, None for the usual number.
        runs: where runs are kept, so that nothing is run twice.
    """

    preset: str = "small"
    protocol: Protocol = "online"
    caches: dict[str, list[str]] = field(default_factory=dict)
    described: tuple[str, ...] = ()
    seeds: int | None = None
    limit: int | None = None
    skip: tuple[str, ...] = ()
    block: str | None = None
    unlike: str = "another model and other data, for orientation"
    model: str = DEFAULT_MODEL
    batch: int | None = None
    runs: str | None = None

    @property
    def amount(self) -> Preset:
        """How much of the data a study takes."""
        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)
        preset = PRESETS[self.preset]
        some = [n for n in (preset.images, self.limit) if n is not None]
        return replace(preset, images=min(some, default=None), seeds=self.seeds or preset.seeds)

    def labs(self) -> list[Lab]:
        """A lab for each seed; what is loaded and run is shared by all."""
        preset = self.amount
        first = Lab(
            self._opened("default", self.caches, 0),
            self._opened("cupl", self.described, 0),
            preset=preset,
            skip=self.skip,
            protocol=self.protocol,
            redrawn=bool(self.caches) and min(map(len, self.caches.values())) >= preset.seeds,
            block=self.block,
            unlike=self.unlike,
            results=None if self.runs is None else Results(self.runs),
            loading=self.loading,
            batch=self.batch,
        )
        return [first] + [
            first.another(seed, self._opened("default", self.caches, seed),
                          self._opened("cupl", self.described, seed))
            for seed in range(1, preset.seeds)
        ]  # fmt: skip

    def _opened(self, prompt_set: str, names: Iterable[str], seed: int) -> dict[str, Cache]:
        folders = {n: self.caches[n] for n in names}
        caches = {n: Cache(f[min(seed, len(f) - 1)], prompt_set) for n, f in folders.items()}
        if self.device:
            place = head_device(self.device)
            for cache in caches.values():
                cache.class_weights = cache.class_weights.to(place)  # batches follow them
        return caches


def prepare(
    source: Source,
    settings: Settings,
    folder: str | os.PathLike[str],
    descriptions: Sequence[str] = (),
    begin: Callable[[str, int], Tick] = lambda name, images: silent,
    *,
    crops: Mapping[str, Any] | None = None,
    seeds: int = 1,
) -> Settings:
    """Encode the views of every data set, once per seed of the crops, into caches; what is there
    already is used.

    `descriptions` are as `descriptions_of` takes them. `crops` are options of the views that are
    encoded here, unless the source has them. `begin` is told each set and how many images it has,
    and gives who is told of them.
    """
    named = named_sets(source)
    told = descriptions_of(descriptions, list(named))
    if not all(spec.startswith("cache:") for spec in source.data):
        source = replace(source, model=_two_towers(source))  # loaded once for all sets
    caches: dict[str, list[str]] = {}
    recipes: dict[str, Recipe] = {}
    for name, spec in named.items():
        if spec.startswith("cache:"):
            caches[name] = [spec.removeprefix("cache:")]
            recipes[name] = _asked(source, spec).open().recipe  # refused if it is not as asked
            continue
        own = load_dataset(spec).templates if source.prompts is None else None
        prompts = {"default": source.prompts or Prompts.of(own or "single")}
        if name in told:
            prompts["cupl"] = Prompts.of("single", told[name])
        caches[name] = [str(path) for path in _homes(folder, name, seeds)]
        for seed, path in enumerate(caches[name]):
            views = {**(crops or {}), **begun(path), **source.asked("views"), "seed": seed}
            for key, wording in prompts.items():
                live = replace(source, data=[spec], prompts=wording, views=views).open()
                assert isinstance(live, Live)
                recipes[name] = live.recipe
                title = f"{name}, crops of seed {seed}" if seeds > 1 else name
                extract(live, path, key, tick=begin(title, len(live)))
    model = _one_model(recipes) if recipes else settings.model
    unlike = _unlike(source, model, next(iter(recipes.values())).fingerprint) if recipes else ""
    block = None if unlike else BLOCKS.get(model)
    return replace(settings, caches=caches, described=tuple(told), model=model, block=block,
                   unlike=unlike)  # fmt: skip


def _asked(source: Source, spec: str) -> Source:
    """A cache as it was asked for: there is nothing to decode."""
    return replace(source, data=[spec], workers=None, strict=False)


def _homes(folder: str | os.PathLike[str], name: str, seeds: int) -> list[Path]:
    """The caches of a set, one per seed of the crops."""
    home = Path(folder) / "caches"
    return [home / (f"{name}-seed-{seed}" if seed else name) for seed in range(seeds)]


def named_sets(source: Source) -> dict[str, str]:
    """The data by the name of its set; two of one name are refused."""
    out: dict[str, str] = {}
    for spec in source.data:
        name, _, path = spec.partition(":")
        if name == "cache":
            sets = {str(d["name"]) for d in _asked(source, spec).open().recipe.data["datasets"]}
            name = min(sets) if len(sets) == 1 else Path(path).name
        if name in out:
            raise InputError(
                f"two of the data sets are called {name!r} and could not be told apart; give one "
                "at a time, or as caches (`adte extract`), which are called by their images' folder"
            )
        out[name] = spec
    return out


def descriptions_of(given: Sequence[str], sets: Sequence[str]) -> dict[str, str]:
    """The file of descriptions of each set that has one.

    Each of `given` is SET=FILE, a file for all sets that are not named so, or a folder of files
    whose names hold those of the sets, as CuPL's do; ImageNet's is for its variants, too.
    """
    out, rest = dict[str, str](), list[str]()
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or (Path(one).exists() and name not in sets):
            rest.append(one)
        elif name not in sets:
            raise InputError(f"--descriptions {one!r}: {name!r} is none of {', '.join(sets)}")
        else:
            out[name] = path
    for name in (n for n in sets if n not in out):
        keys = [_letters(name), *(["imagenet"] if name.startswith("imagenet-") else [])]
        for place in map(Path, rest):
            files = sorted(place.glob("*.json"), key=lambda f: (len(f.name), f.name))
            held = [f for key in keys for f in files if key in _letters(f.stem)]
            if held or not place.is_dir():
                out[name] = str(held[0] if held else place)
    if given and not out:
        raise InputError(
            f"--descriptions {given[0]!r} has no file for {', '.join(sets)}; name it, as in "
            f"--descriptions {next(iter(sets), 'SET')}=FILE"
        )
    return out


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _unlike(source: Source, model: str, fingerprint: str) -> str:
    """Why these are not the published weights of a model of the paper; empty if they are.

    The file is compared by its SHA-256 with what open_clip publishes, and the features with it.
    """
    if model not in BLOCKS:
        return f"{model} is not a model of the paper ({', '.join(BLOCKS)})"
    try:
        check_published(model, source.weights)
        loaded = source.model if isinstance(source.model, Model) else load_with(source, model)
    except AdteError as error:
        return str(error)
    same = loaded.fingerprint == fingerprint
    return "" if same else f"the features were made with other weights than those of {model}"


def planned(wanted: Sequence[Study], source: Source, settings: Settings) -> list[dict[str, object]]:
    """What the studies would cost in passes through a tower, counted with nothing encoded or run.

    Views are encoded once for all studies. Methods that tune prompts send every class through the
    text tower for every image, once for each step (and back), and once more for the answer.
    """
    amount, out = settings.amount, list[dict[str, object]]()
    sizes: dict[str, dict[str, tuple[int, int]]] = {"ood": {}, "cross-domain": {}}
    sets = named_sets(source)
    drawn = bool(sets) and not any(spec.startswith("cache:") for spec in sets.values())
    for name, spec in sets.items():
        data = load_dataset(spec) if not spec.startswith("cache:") else _asked(source, spec).open()
        images = min(len(data), amount.images or len(data))
        sizes["cross-domain" if name in CROSS else "ood"][name] = images, len(data.classes)
        if not spec.startswith("cache:"):
            views = int(source.asked("views").get("count", Views().count))
            out.append(_passes(name, "image", images, amount.seeds, views=views))
    if not sets:
        lab = settings.labs()[0]
        for name, streams in (("ood", lab.family()), ("cross-domain", lab.cross())):
            sizes[name] = {c: (len(s), len(s.classes)) for c, s in streams.items()}
    for study in wanted:
        for method in (m for m in TUNERS if m not in settings.skip):
            made: Any = create_method(method)
            runs = amount.seeds if drawn or made.stateful else 1
            times = (made.steps + 1) * getattr(made, "prompts", 1)  # at most
            out += [
                _passes(f"{study.name}, {method}, {name}", "text, in part with gradients",
                        min(images, amount.tuned or images), runs, classes=classes, times=times)
                for name, (images, classes) in sizes.get(study.name, {}).items()
            ]  # fmt: skip
    return out


def _passes(name: str, tower: str, images: int, seeds: int, **factors: int) -> dict[str, object]:
    known = {k: v for k, v in factors.items() if v != 1}
    how = [f"{images:,} images", *(f"{v:,} {k}" for k, v in known.items()), f"{seeds} seeds"]
    passes = images * seeds * math.prod(factors.values())
    return {"name": name, "tower": tower, "images": images, "seeds": seeds, **factors,
            "passes": passes, "how": " × ".join(how)}  # fmt: skip


def _two_towers(source: Source) -> Model:
    model = source.model
    if not isinstance(model, Model):
        model = load_with(source, model or DEFAULT_MODEL)
    if "text tower" not in model.offers:
        raise _fixed(model.name)
    return model


def _fixed(model: str) -> InputError:
    return InputError(
        f"the studies need a vision-language model, and {model!r} has fixed classes; use "
        "`adte compare` for it"
    )


def _one_model(recipes: Mapping[str, Recipe]) -> str:
    """The name of the model behind all sets; several, or one of fixed classes, are refused."""
    name, first = next(iter(recipes.items()))
    if first.fixed_classes:
        raise _fixed(first.model)
    for other, recipe in recipes.items():
        if recipe.fingerprint != first.fingerprint:
            raise InputError(
                f"the features of {name!r} are of model {first.model!r}, those of {other!r} of "
                f"{recipe.model!r}; give sets of one model"
            )
    return first.model


def chosen(names: Sequence[str], ours: bool) -> list[Study]:
    """Studies by name; "all" for all of the paper's, or of ours."""
    if list(names) == ["all"]:
        return studies(ours)
    found = [find_study(n) for n in dict.fromkeys(names)]
    for s in found:
        if s.ours != ours:
            verb = "study" if s.ours else "paper"
            raise InputError(f"{s.name!r} is run with `adte {verb} {s.name}`")
    return found


def _work(name: str, settings: Settings) -> Finding:
    torch.set_num_threads(1)
    return find_study(name).conduct(settings.labs())


def conduct(
    wanted: Sequence[Study], settings: Settings, jobs: int = 1
) -> Iterator[tuple[Study, Finding | AdteError]]:
    """Each study with what it found, or why it could not be run, as they end."""
    if jobs == 1 or len(wanted) == 1:
        labs = settings.labs()
        for s in wanted:
            try:
                yield s, s.conduct(labs)
            except AdteError as error:
                yield s, error
        return
    rank = {name: i for i, name in enumerate(SLOW)}
    order = sorted(wanted, key=lambda s: rank.get(s.name, len(rank)))
    with ProcessPoolExecutor(min(jobs, len(order)), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_work, s.name, settings): s for s in order}
        try:
            for done in as_completed(waiting):
                try:
                    yield waiting[done], done.result()
                except AdteError as error:
                    yield waiting[done], error
        except KeyboardInterrupt:  # what is under way is not waited for; its runs so far are kept
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def facts(done: Sequence[tuple[Study, Finding]]) -> list[dict[str, object]]:
    """The findings as JSON; `robust` says its verdict in figures too."""
    out = []
    for s, f in done:
        more = robust_facts(f.rows, f.columns) if s.name == "robust" else {}
        out.append({**s.facts(f), **more})
    return out
