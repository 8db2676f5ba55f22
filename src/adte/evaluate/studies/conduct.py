"""Conduct studies: one after another or side by side, with their runs kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from adte.data import load_dataset
from adte.errors import AdteError, InputError, unknown
from adte.evaluate.features.cache import Cache, begun, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import Tick, silent
from adte.evaluate.running.protocol import Protocol
from adte.evaluate.running.results import Results
from adte.evaluate.source import DEFAULT_MODEL, Source
from adte.evaluate.studies.lab import BLOCKS, PRESETS, Lab
from adte.evaluate.studies.robustness import robust_facts
from adte.evaluate.studies.study import Finding, Study, find_study, studies
from adte.loading import Loading
from adte.machine import head_device
from adte.models import Model
from adte.models.loading import load_with
from adte.prompts import Prompts

__all__ = ["PUBLISHED", "Settings", "chosen", "conduct", "facts", "prepare"]

PUBLISHED = {"enlarge": 0.0}  # of the views: the paper crops however small an image is
# What takes longest goes first, so that workers end together.
SLOW = ("ood", "cross-domain", "deyo", "unimodal", "multilabel", "robust", "cost")


@dataclass(frozen=True, kw_only=True)
class Settings(Loading):
    """Everything that decides what a lab holds; plain data, so that a worker can be told.

    Attributes:
        caches: data-set name → cache folder; empty for the embedded bundles.
        described: whether those caches also hold class weights from descriptions.
        model: behind the caches, as they say; loaded where a method needs a tower.
        batch: images per call of a method, None for the usual number.
        runs: where runs are kept, so that nothing is run twice.
    """

    preset: str = "small"
    adte: str = "adte-tsallis"
    protocol: Protocol = "online"
    caches: dict[str, str] = field(default_factory=dict)
    described: bool = False
    model: str = "tiny"
    batch: int | None = None
    runs: str | None = None

    @property
    def block(self) -> str | None:
        """Which of the paper's models this is, if any."""
        return BLOCKS.get(self.model) if self.caches else None

    def lab(self) -> Lab:
        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)
        return Lab(
            sets=self._opened("default"),
            described=self._opened("cupl") if self.described else {},
            preset=PRESETS[self.preset],
            adte=self.adte,
            protocol=self.protocol,
            results=None if self.runs is None else Results(self.runs),
            loading=self.loading,
            batch=self.batch,
        )

    def _opened(self, prompt_set: str) -> dict[str, Cache]:
        caches = {n: Cache(f, prompt_set) for n, f in self.caches.items()}
        if self.device:
            place = head_device(self.device)
            for cache in caches.values():
                cache.class_weights = cache.class_weights.to(place)  # batches follow them
        return caches


def prepare(
    source: Source,
    settings: Settings,
    folder: str | os.PathLike[str],
    descriptions: str | None = None,
    begin: Callable[[str, int], Tick] = lambda name, images: silent,
    *,
    crops: Mapping[str, Any] | None = None,
) -> Settings:
    """Encode the views of every data set once, into caches; what is there already is used.

    `crops` are options of the views that are encoded here, unless the source has them. `begin` is
    told each set and how many images it has, and gives who is told of them.
    """
    if not all(spec.startswith("cache:") for spec in source.data):
        source = replace(source, model=_two_towers(source))  # loaded once for all sets
    caches: dict[str, str] = {}
    recipes: dict[str, Recipe] = {}
    for spec in source.data:
        name, _, path = spec.partition(":")
        if name == "cache":
            there = replace(source, data=[spec], workers=None, strict=False)  # nothing to decode
            recipe = there.open().recipe  # refused if it is not as asked
            names = [d["name"] for d in recipe.data["datasets"]]
            name = str(names[0]) if len(set(names)) == 1 else Path(path).name
        if name in caches:
            raise InputError(
                f"two of the data sets are called {name!r} and could not be told apart; give one "
                "at a time, or as caches (`adte extract`), which are called by their images' folder"
            )
        if not spec.startswith("cache:"):
            path = str(Path(folder) / "caches" / name)
            views = {**(crops or {}), **begun(path), **source.asked("views")}
            own = load_dataset(spec).templates if source.prompts is None else None
            prompts = {"default": source.prompts or Prompts.of(own or "single")}
            if descriptions:
                prompts["cupl"] = Prompts.of("single", descriptions)
            for key, wording in prompts.items():
                live = replace(source, data=[spec], prompts=wording, views=views).open()
                assert isinstance(live, Live)
                recipe = live.recipe
                extract(live, path, key, tick=begin(name, len(live)))
        caches[name], recipes[name] = path, recipe
    model = _one_model(recipes) if recipes else settings.model
    return replace(settings, caches=caches, described=bool(descriptions), model=model)


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
    return find_study(name).conduct(settings.lab())


def conduct(
    wanted: Sequence[Study], settings: Settings, jobs: int = 1
) -> Iterator[tuple[Study, Finding | AdteError]]:
    """Each study with what it found, or why it could not be run, as they end."""
    if jobs == 1 or len(wanted) == 1:
        lab = settings.lab()
        for s in wanted:
            try:
                yield s, s.conduct(lab)
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


def facts(done: Sequence[tuple[Study, Finding]], block: str | None) -> list[dict[str, object]]:
    """The findings as JSON; `robust` says its verdict in figures too."""
    out = []
    for s, f in done:
        more = robust_facts(f.rows, f.columns) if s.name == "robust" else {}
        out.append({**s.facts(f, block), **more})
    return out
