"""From names and paths to a stream of features: what `eval`, `extract` and `compare` begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from adte.data import Dataset, StreamOptions, corrupted, load_dataset, make_stream
from adte.data.corrupted import corruption_list, severity_list
from adte.errors import InputError
from adte.evaluate.cache import Cache
from adte.evaluate.features import FeatureStream, Live, label_space
from adte.methods import Method
from adte.models import Model, load_model
from adte.models.base import ImageOnly
from adte.prompts import Prompts, class_weights
from adte.views import Views

__all__ = ["Source", "needs_pixels"]


def needs_pixels(methods: Sequence[Method]) -> bool:
    """Whether any of them looks at more than features."""
    return any(m.needs & {"pixels", "image tower"} for m in methods)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where labelled features come from.

    Attributes:
        data: "name:PATH" of one or several data sets, or one "cache:FOLDER".
        model: a name for `load_model`; weights, device: passed on to it.
        prompts: what is said of each class; None takes the templates of the (first) data set.
        views, stream: how images become views, and sets become a stream. None makes 64 views with
            the stream's seed, or takes those that a cache holds.
        corrupt, severity: corruptions to make on the fly, added to the clean images as domains.
        clean: whether the clean images stay when corruptions are asked for.
    """

    data: Sequence[str]
    model: str | Model = "tiny"
    weights: str | None = None
    device: str | None = None
    prompts: Prompts | None = None
    views: Views | None = None
    stream: StreamOptions = field(default_factory=StreamOptions)
    corrupt: str = ""
    severity: str = "5"
    clean: bool = True
    workers: int = 0
    strict: bool = False

    def open(self, pixels: bool = False) -> FeatureStream:
        """The stream; features are made as it goes, or read where `data` is a cache."""
        if len(self.data) > 1 and any(d.startswith("cache:") for d in self.data):
            raise InputError(
                "a cache is a stream of its own and cannot be joined with other data; give one "
                "cache at a time, or the images themselves"
            )
        if len(self.data) == 1 and self.data[0].startswith("cache:"):
            if pixels:
                raise InputError(
                    f"{self.data[0]!r} holds features, but a method asked for needs the image "
                    "tower; give it images, as in --data folder:PATH"
                )
            self.check_cache(self.data[0])
            cache = Cache(self.data[0].removeprefix("cache:"))
            cache.model = self._model(cache.classes, cache.facts["class_ids"])
            cache.expect(
                None if self.views is None else self.views.count,
                None if self.prompts is None else self.prompts.describe(),
            )
            return cache.first(self.stream.limit).shuffled(self.stream.seed)
        stream = make_stream(self._sets(), self.stream)
        names, ids = label_space(stream)
        model = self._model(names, ids)
        if isinstance(model, ImageOnly):
            weights, said = model.weights(), {"name": "none, fixed classes"}
        else:
            prompts = self.prompts or Prompts.of(stream.datasets[0].templates)
            weights, said = class_weights(model, names, prompts), prompts.describe()
        return Live(
            model=model,
            class_weights=weights,
            stream=stream,
            views=self.views or Views(seed=self.stream.seed),
            prompts=said,
            keep_pixels=pixels,
            workers=self.workers,
            strict=self.strict,
        )

    def check_cache(self, name: str) -> None:
        """Refuse what only images can be made into; features lie in the order they were made."""
        plain = replace(StreamOptions(), limit=self.stream.limit, seed=self.stream.seed)
        for option, value in asdict(self.stream).items():
            if value != getattr(plain, option):
                raise InputError(
                    f"{option}={value!r} cannot be had from {name}, whose stream was made when it "
                    "was extracted; extract it anew with that option"
                )
        if self.corrupt:
            raise InputError(
                f"--corrupt {self.corrupt} needs images, and {name} holds features; extract them "
                "anew with that option"
            )

    def _model(self, names: Sequence[str], ids: Sequence[str]) -> Model:
        """The model; one of fixed classes is narrowed to the data's."""
        found: Any = self.model
        if isinstance(found, str):
            found = load_model(found, weights=self.weights, device=self.device)
        if isinstance(found, Model):
            return found
        if self.prompts is not None:
            raise InputError(
                f"model {found.name!r} has fixed classes and reads no prompts; leave --prompts and "
                "--descriptions out"
            )
        return ImageOnly.of(found, names, ids)

    def _sets(self) -> list[Dataset]:
        if not self.data:
            raise InputError("no data was given; name it as in --data folder:PATH")
        sets = [load_dataset(spec) for spec in self.data]
        if not self.corrupt:
            return sets
        seed = self.stream.seed
        worse = [
            corrupted(d, kind, level, seed)
            for d in sets
            for kind in corruption_list(self.corrupt)
            for level in severity_list(self.severity)
        ]
        return [*sets, *worse] if self.clean else worse
