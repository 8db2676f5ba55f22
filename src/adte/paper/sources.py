"""A person's data sets: encoded once for all studies, and counted without being encoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adte.core.errors import AdteError, InputError
from adte.core.loading import DEFAULT_MODEL
from adte.data import load_dataset
from adte.evaluate.features.cache import begun, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Tick, silent
from adte.evaluate.source import Source
from adte.images import Views
from adte.methods import create_method
from adte.models import Model
from adte.models.get import check_published
from adte.models.loading import load_with
from adte.models.prompts import Prompts
from adte.paper.comparisons import TUNERS
from adte.paper.lab import BLOCKS, CROSS, Lab, Settings
from adte.paper.study import Study

__all__ = ["PUBLISHED", "descriptions_of", "planned", "prepare"]

PUBLISHED = {"enlarge": 0.0}  # of the views: the paper crops however small an image is
CACHE = "cache:"


def prepare(
    source: Source,
    settings: Settings,
    folder: Path,
    descriptions: Sequence[str] = (),
    begin: Callable[[str, int], Tick] = lambda name, images: silent,
    *,
    crops: Mapping[str, Any] | None = None,
    seeds: int = 1,
) -> Settings:
    """Encode the views of every data set, once per seed of the crops, into caches in the folder;
    those that are complete are used.

    `crops` are options of the views that are encoded here, unless the source has them. `begin`
    takes each set and how many images it has, and returns the listener of its progress.
    """
    named = named_sets(source)
    texts = descriptions_of(descriptions, list(named))
    if not all(spec.startswith(CACHE) for spec in source.data):
        model = source.model or DEFAULT_MODEL
        if not isinstance(model, Model):  # loaded once for all sets
            source = replace(source, model=load_with(source, model))
    caches: dict[str, list[str]] = {}
    recipes: dict[str, Recipe] = {}
    for name, spec in named.items():
        if spec.startswith(CACHE):
            caches[name] = [spec.removeprefix(CACHE)]
            recipes[name] = _cache(source, spec).recipe  # refused if it is not as asked
            continue
        own = load_dataset(spec).templates if source.prompts is None else None
        prompts = {"default": source.prompts or Prompts.of(own or "single")}
        if name in texts:
            prompts["cupl"] = Prompts.of("single", texts[name])
        home = folder / "caches"
        caches[name] = [str(home / (f"{name}-seed-{n}" if n else name)) for n in range(seeds)]
        for seed, path in enumerate(caches[name]):
            views = {**(crops or {}), **begun(path), **source.asked("views"), "seed": seed}
            for key, wording in prompts.items():
                live = replace(source, data=[spec], prompts=wording, views=views).open()
                assert isinstance(live, Live)
                recipes[name] = live.recipe
                title = f"{name}, crops of seed {seed}" if seeds > 1 else name
                extract(live, path, key, tick=begin(title, len(live)))
    if not recipes:
        return settings
    model = _one_model(recipes)
    unlike = _unlike(source, model, next(iter(recipes.values())).fingerprint)
    block = None if unlike else BLOCKS[model]
    return replace(settings, caches=caches, described=tuple(texts), model=model, block=block,
                   unlike=unlike)  # fmt: skip


def _cache(source: Source, spec: str) -> FeatureStream:
    """A cache as it was asked for: nothing is to be decoded."""
    return replace(source, data=[spec], workers=None, strict=False).open()


def named_sets(source: Source) -> dict[str, str]:
    """The data by the name of its set; two of one name are refused."""
    out: dict[str, str] = {}
    for spec in source.data:
        name, _, path = spec.partition(":")
        if spec.startswith(CACHE):
            sets = {str(d["name"]) for d in _cache(source, spec).recipe.data["datasets"]}
            name = min(sets) if len(sets) == 1 else Path(path).name
        if name in out:
            raise InputError(
                f"two of the data sets are called {name!r} and could not be told apart; give one "
                "at a time, or as caches (`adte extract`), which are called by their images' folder"
            )
        out[name] = spec
    return out


def descriptions_of(given: Sequence[str], sets: Sequence[str]) -> dict[str, str]:
    """The file of descriptions of each set: SET=FILE, or a file for all other sets."""
    out, rest = dict[str, str](), dict[str, str]()
    for one in given:
        name, equals, path = one.partition("=")
        if name in sets and equals:
            out[name] = path
        elif Path(one).is_file():
            rest |= dict.fromkeys(sets, one)
        else:
            raise InputError(
                f"--descriptions {one!r} is no file, and {name!r} is none of {', '.join(sets)}; "
                f"write it as {next(iter(sets), 'SET')}=FILE"
            )
    return rest | out


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


def _one_model(recipes: Mapping[str, Recipe]) -> str:
    """The name of the model behind all sets; several, or one of fixed classes, are refused."""
    name, first = next(iter(recipes.items()))
    if first.fixed_classes:
        raise InputError(
            f"the studies need a vision-language model, and {first.model!r} has fixed classes; use "
            "`adte compare` for it"
        )
    for other, recipe in recipes.items():
        if recipe.fingerprint != first.fingerprint:
            raise InputError(
                f"the features of {name!r} are of model {first.model!r}, those of {other!r} of "
                f"{recipe.model!r}; give sets of one model"
            )
    return first.model


def planned(wanted: Sequence[Study], source: Source, settings: Settings) -> list[dict[str, object]]:
    """The cost of the studies in passes through a tower, counted with nothing encoded or run.

    Views are encoded once for all studies. Methods that tune prompts send every class through the
    text tower for every image, once for each step (and back), and once more for the answer.
    """
    out: list[dict[str, object]] = []

    def count(name: str, tower: str, images: int, seeds: int, **factors: int) -> None:
        known = [f"{v:,} {k}" for k, v in factors.items() if v != 1]
        how = " × ".join([f"{images:,} images", *known, f"{seeds} seeds"])
        passes = images * seeds * math.prod(factors.values())
        out.append({"name": name, "tower": tower, "images": images, "seeds": seeds, **factors,
                    "passes": passes, "how": how})  # fmt: skip

    sizes: dict[str, dict[str, tuple[int, int]]] = {"ood": {}, "cross-domain": {}}
    sets = named_sets(source)
    for name, spec in sets.items():
        cached = spec.startswith(CACHE)
        data = _cache(source, spec) if cached else load_dataset(spec)
        images = min(len(data), settings.images or len(data))
        sizes["cross-domain" if name in CROSS else "ood"][name] = images, len(data.classes)
        if not cached:
            views = int(source.asked("views").get("count", Views().count))
            count(name, "image", images, settings.seeds, views=views)
    if not sets:
        lab = Lab(settings)
        for name, streams in (("ood", lab.family()), ("cross-domain", lab.cross())):
            sizes[name] = {c: (len(s), len(s.classes)) for c, s in streams.items()}
    redrawn = bool(sets) and not any(spec.startswith(CACHE) for spec in sets.values())
    for study in wanted:
        for method in (m for m in TUNERS if m not in settings.skip):
            made: Any = create_method(method)
            seeds = settings.seeds if redrawn or made.stateful else 1
            times = (made.steps + 1) * getattr(made, "prompts", 1)  # at most
            for name, (images, classes) in sizes.get(study.name, {}).items():
                few = min(images, settings.tuned or images)
                count(f"{study.name}, {method}, {name}", "text, in part with gradients", few, seeds,
                      classes=classes, times=times)  # fmt: skip
    return out
