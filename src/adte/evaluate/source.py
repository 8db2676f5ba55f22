"""From names and paths to a stream of features: what `eval`, `extract` and `compare` begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from adte.core.errors import InputError
from adte.core.loading import DEFAULT_MODEL
from adte.core.machine import head_device
from adte.core.options import build, check
from adte.data import Dataset, StreamOptions, corrupted, load_dataset, make_stream
from adte.data.corrupted import corruption_list, severity_list
from adte.data.streams import check_limit
from adte.evaluate.asked import FEATURES, Asked
from adte.evaluate.features.arrays import from_npz
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.live import Live, label_space
from adte.evaluate.features.stream import PIXELS, TOWERS, FeatureStream, S
from adte.files.order import Order
from adte.images import Views
from adte.methods import Method
from adte.models import Model
from adte.models.base import fitted, no_prompts
from adte.models.loading import check_loading, load_with
from adte.models.prompts import Prompts, class_weights
from adte.pipeline import default_workers

__all__ = ["FEATURES", "Source", "needs_of"]


def needs_of(methods: Sequence[Method]) -> frozenset[str]:
    """The needs of any of them."""
    return frozenset[str]().union(*(m.needs for m in methods))


@dataclass(frozen=True, kw_only=True)
class Source(Asked):
    """Where labelled features come from.

    Attributes:
        prompts: the texts of each class; None takes the templates of the (first) data set.
        views, stream: how images become views, and sets become a stream: options by name. Those
            that are named must hold for a cache too; those that are not take what it holds.
    """

    prompts: Prompts | None = None
    views: Views | Mapping[str, Any] | None = None
    stream: StreamOptions | Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        check_loading(self)
        if not self.corrupt and (self.severity != "5" or not self.clean):
            named = "--severity" if self.severity != "5" else "--no-clean"
            raise InputError(f"{named} needs --corrupt; say which corruptions, as in --corrupt fog")

    @property
    def cache(self) -> str | None:
        """The folder of the cache, if the data is one."""
        return self._features("cache:")

    @property
    def npz(self) -> str | None:
        """The file of features, if the data is one."""
        return self._features("npz:")

    def _features(self, kind: str) -> str | None:
        named = [d for d in self.data if d.startswith(FEATURES)]
        if named and len(self.data) > 1:
            raise InputError(
                f"{named[0]!r} is a stream of its own and cannot be joined with other data; give "
                "it alone, or the images themselves"
            )
        return named[0].removeprefix(kind) if named and named[0].startswith(kind) else None

    @property
    def lacking(self) -> frozenset[str]:
        """Needs that no model can meet on this data."""
        return frozenset() if self.npz is None else frozenset({"text tower"})

    def open(self, needs: frozenset[str] = frozenset()) -> FeatureStream:
        """The stream; features are made as it goes, or read where `data` is a cache.

        `needs` are those of the methods to come: a cache's model is loaded only for its text tower,
        and pixels are kept only where they are asked for.
        """
        if self.cache is not None:
            return self._replayed(Cache(self.cache, self.prompt_set), f"{self.data[0]!r}", needs)
        if self.npz is not None:
            return self._own_features(self.npz, f"{self.data[0]!r}", needs)
        options = build(StreamOptions, self.asked("stream"), "option of a stream")
        views = build(Views, self.asked("views"), "option of the views")
        stream = make_stream(self._sets(options.seed), options)
        names, ids = label_space(stream)
        model = fitted(self._model(DEFAULT_MODEL), names, ids)
        if "text tower" in model.offers:
            prompts = self.prompts or Prompts.of(stream.datasets[0].templates)
            weights, texts = class_weights(model, names, prompts), prompts.describe()
        else:
            if self.prompts is not None:
                raise no_prompts(model)
            weights, texts = model.class_weights(), {"name": "none, fixed classes"}
        return Live(
            model=model,
            class_weights=weights,
            stream=stream,
            views=views,
            prompts=texts,
            keep_pixels=bool(needs & PIXELS),
            workers=default_workers() if self.workers is None else self.workers,
            strict=self.strict,
            group=self.batch or 0,
        )

    def or_bundle(self, needs: frozenset[str] = frozenset()) -> FeatureStream:
        """The data, or the bundle that the package carries without any."""
        if self.data:
            return self.open(needs)
        return self._replayed(Cache(), "the embedded bundle", needs)

    def asked(self, what: str) -> dict[str, Any]:
        """The options of the stream or of the views that were asked for, with the seed."""
        given = getattr(self, what)
        if given is None or isinstance(given, Mapping):
            named = dict(given or {})
        else:
            usual = asdict(type(given)())
            named = {k: v for k, v in asdict(given).items() if v != usual[k]}
        return named if self.seed is None else {"seed": self.seed, **named}

    def _replayed(self, cache: Cache, name: str, needs: frozenset[str]) -> FeatureStream:
        """A cache as a stream, with its model where a text tower is needed."""
        self._refuse(name, needs & PIXELS, "corrupt", "workers", "strict", "runtime")
        recipe = cache.recipe
        held = {"stream": recipe.data, "views": asdict(recipe.views)}
        for what, options in (("stream", StreamOptions), ("views", Views)):
            build(options, asked := self.asked(what), f"option of the {what}")
            for key, value in asked.items():
                known = held[what].get(key)
                known = "listed" if known == "file" else known  # as 0.1 called it
                if key == "limit" or value == known:
                    continue
                mend = "leave the option out, or extract the features anew with it"
                if key == "seed":
                    mend += "; --shuffle and --seeds reorder a stream that is there"
                kind = "views per image" if key == "count" else f"as the {key} of the {what}"
                raise InputError(
                    f"{name} was made with {_shown(known)} {kind}, not {_shown(value)}; {mend}"
                )
        if self.prompts is not None:
            cache.expect(self.prompts.describe())
        files = self.weights is not None or self.tokenizer is not None
        if "text tower" in needs or isinstance(self.model, Model) or files:
            cache.model = fitted(self._model(recipe.model), cache.classes, recipe.class_ids)
            return self._first(cache)
        for key, value in (("model", self.model), ("dtype", self.dtype)):
            if value is not None and value != getattr(recipe, key):
                raise InputError(
                    f"{name} holds features of {key} {getattr(recipe, key)!r}, not of {value!r}; "
                    f"leave --{key} out, or extract them anew"
                )
        return self._first(cache)

    def _own_features(self, path: str, name: str, needs: frozenset[str]) -> FeatureStream:
        """A person's own features as a stream; they are as they are, but for their order."""
        self._refuse(
            name, needs & TOWERS, "corrupt", "workers", "strict", "runtime", "model", "weights",
            "dtype", "tokenizer", "prompts", "prompt_set",
        )  # fmt: skip
        views, how = self.asked("views"), self.asked("stream")
        if self.seed is not None and views["seed"] == self.seed:  # the stream's as well
            del views["seed"]
        options = build(StreamOptions, how, "option of a stream")
        stream = from_npz(path, cast(Order, options.order), options.seed)
        if views.get("count") == stream.recipe.views.count:
            del views["count"]
        for key, value in {**views, **how}.items():
            if key not in ("order", "seed", "limit"):
                raise _fixed("views" if key == "count" else key, value, name)
        return self._first(stream)

    def _refuse(self, name: str, towers: frozenset[str], *options: str) -> None:
        """Refuse methods and options that features do not suffice for."""
        if towers:
            raise InputError(
                f"{name} holds features, but a method asked for needs the {min(towers)}; give "
                "images, as in --data folder:PATH"
            )
        usual = {f.name: f.default for f in fields(self)}
        for key in options:
            if (value := getattr(self, key)) != usual[key]:
                raise _fixed(key, value, name)

    def _first(self, stream: S) -> S:
        """The first images of features, on the device that was asked for; of each domain some."""
        if self.device is not None and stream.model is None:
            stream.class_weights = stream.class_weights.to(head_device(self.device))
        limit = self.asked("stream").get("limit")
        few = stream.first(limit)
        if limit is not None and len(stream.recipe.data.get("domain_counts", ())) > 1:
            check_limit(limit, stream.domains, few.domains)
        return few

    def _model(self, usual: str) -> Model:
        if isinstance(self.model, Model):
            return self.model
        return load_with(self, self.model or usual)

    def _sets(self, seed: int) -> list[Dataset]:
        if not self.data:
            raise InputError("no data was given; name it as in --data folder:PATH")
        sets = [load_dataset(spec) for spec in self.data]
        if not self.corrupt:
            return sets
        worse = [
            corrupted(d, kind, level, seed)
            for d in sets
            for kind in corruption_list(self.corrupt)
            for level in severity_list(self.severity)
        ]
        return [*sets, *worse] if self.clean else worse


def _fixed(key: str, value: Any, name: str) -> InputError:
    option = "template" if key == "prompts" else key.replace("_", "-")
    option += (
        f" {_shown(value)}" if isinstance(value, int | float | str) and value is not True else ""
    )
    return InputError(
        f"--{option} needs images, and {name} holds features; leave it out, or give images, as in "
        "--data folder:PATH"
    )


def _shown(value: Any) -> str:
    return ",".join(f"{x:g}" for x in value) if isinstance(value, tuple) else str(value)
