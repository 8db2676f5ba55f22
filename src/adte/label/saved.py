"""A classifier as it was saved, or a new one: what is asked for is applied, checked or refused.

Never ignored: with a saved state, weights, device and dtype are applied; classes, model, method,
templates, views, seed and options of the method have to be those of the state.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from adte.classifier import Classifier
from adte.classifier.facts import read_state
from adte.classifier.fit import note_order, read_learned, read_method, reordered
from adte.core.errors import InputError
from adte.core.loading import DEFAULT_MODEL, Loading
from adte.files.devices import StrPath, is_special
from adte.files.states import load_state
from adte.methods import create_method
from adte.models.prompts import SINGLE, Prompts
from adte.models.registry import may_have_classes

__all__ = ["Saved", "Wanted", "check_file", "open_classifier", "state_facts"]


@dataclass(frozen=True)
class Wanted(Loading):
    """The classifier that a job uses: what `adte predict` takes as options.

    Attributes:
        classes: class names; None takes those of a saved state.
        model, method: names of the model and of the method.
        templates: prompt templates, or the name of a set.
        descriptions: JSON file of sentences that describe each class.
        allow_missing: use the templates for classes without descriptions.
        views: number of views per image, or "auto".
        seed: seed of the views.
        options: options of the method.
        explicit: names of what was asked for. It must agree with a saved state; the rest are
            defaults, which a saved state replaces.
    """

    classes: Sequence[str] | None = None
    model: str = DEFAULT_MODEL
    method: str = "tilt"
    templates: Sequence[str] = SINGLE
    descriptions: str | None = None
    allow_missing: bool = False
    views: int | Literal["auto"] = 64
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()

    def new(self) -> Classifier:
        """Make a classifier that has learned nothing yet."""
        if self.classes is None and not may_have_classes(self.model):
            raise InputError("no classes were given; name them as in --classes 'cat, dog, car'")
        return Classifier(
            self.model,
            self.classes or (),
            self.method,
            templates=self.prompts,
            views=self.views,
            seed=self.seed,
            **asdict(self.loading),
            **self.options,
        )

    @property
    def prompts(self) -> Prompts:
        """The prompts of each class."""
        templates = self.templates[0] if len(self.templates) == 1 else self.templates
        return Prompts.of(templates, self.descriptions, allow_missing=self.allow_missing)

    def differences(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """What was asked for and differs in a state, as (name, value here, value there)."""
        views, prompts = facts["views"], facts["prompts"]
        theirs = {
            "classes": facts["classes"],
            "model": facts["model"],
            "method": facts["method"],
            "template": list(prompts["templates"]),
            "views": "auto" if facts["auto"] else views["count"],
            "seed": views["seed"],
        }
        ours = {name: getattr(self, name) for name in theirs if name != "template"}
        if "templates" in self.explicit:
            ours["template"] = list(self.prompts.templates)
        for name, there in theirs.items():
            if name == "classes" and ours[name] == facts["class_ids"]:
                continue
            option = "templates" if name == "template" else name
            if option in self.explicit and ours[name] != there:
                yield name, ours[name], there
        if "descriptions" in self.explicit and _table(self.prompts) != _table(prompts):
            yield "descriptions", self.descriptions, prompts["name"]


def _table(prompts: Prompts | Mapping[str, Any]) -> dict[str, list[str]]:
    """The sentences of each class."""
    descriptions = prompts.descriptions if isinstance(prompts, Prompts) else prompts["descriptions"]
    return {name: list(sentences) for name, sentences in (descriptions or {}).items()}


@dataclass(frozen=True)
class Saved:
    """A state file, and what to do where it does not fit.

    Attributes:
        path: of the state; name: what a person calls it; mend: what helps.
    """

    path: str
    name: str
    mend: str = "choose another state file"

    @staticmethod
    def by_option(path: StrPath) -> Saved:
        return Saved(os.fspath(path), f"--state {os.fspath(path)!r}")

    @staticmethod
    def beside(out: StrPath) -> Saved:
        """The state that belongs to an output."""
        path = f"{os.fspath(out).rstrip('/')}.adte"
        return Saved(path, f"the state of --out, {path!r},", "give another --out, or --force")


def state_facts(path: StrPath) -> dict[str, Any]:
    """What a state file holds, as values for JSON; the model is not needed.

    `by_class` has, of methods that estimate them, the bias that answers are divided by, 1 where
    there is none, and the share of each class in the stream.
    """
    tensors, facts = read_learned(path)
    method, classes = read_method(os.fspath(path), facts), facts["classes"]
    method.load_state_dict(tensors, {"L": len(classes)})
    prior = method.class_prior
    by_class: list[dict[str, Any]] = [{"class": name} for name in classes]
    if prior is not None and prior.seen:
        for row, p in zip(by_class, prior.log_prior.exp().tolist(), strict=True):
            row["bias"] = p * len(classes)
    if prior is not None and prior.shares is not None and prior.seen:
        for row, *share in zip(by_class, *(x.tolist() for x in prior.shares), strict=True):
            row |= zip(("share", "low", "high"), share, strict=True)
    names = ("model", "fingerprint", "method", "seen", "frozen", "temperature")
    return {
        "file": os.fspath(path),
        "saved_by": facts["version"],
        **{name: facts[name] for name in names},
        "options": method.params,
        "views": "auto" if facts["auto"] else facts["views"]["count"],
        "templates": list(facts["prompts"]["templates"]),
        "outputs": sorted(facts["outputs"] or {}),
        "by_class": by_class,
    }


def check_file(option: str, path: StrPath) -> None:
    """Refuse to put a state where it could not be read back."""
    if os.fspath(path) == "-" or is_special(path):
        raise InputError(f"{option} {os.fspath(path)!r} is not a file; give a file name")


def open_classifier(wanted: Wanted, saved: Saved) -> tuple[Classifier, dict[str, Any]]:
    """The classifier of a state, and what the state says of outputs, see `adte.files.journal`."""
    facts = read_state(load_state(saved.path)[1], saved.path)
    for name, here, there in wanted.differences(facts):
        if name == "classes" and reordered(there, here):  # the state's own is as good
            warnings.warn(note_order(saved.name), stacklevel=3)
            continue
        if name == "classes":
            reason = "was saved for other classes than --classes names"
        elif name == "descriptions":  # the file may be the same, and changed
            reason = f"was saved with other descriptions than {here!r} has"
        else:
            reason = f"was saved with {name} {there!r}, not {here!r}"
        raise InputError(f"{saved.name} {reason}; leave --{name} out, or {saved.mend}")
    if "options" in wanted.explicit:
        was = create_method(facts["method"], **facts["options"]).params
        wished = create_method(facts["method"], **{**facts["options"], **wanted.options}).params
        for name, here in wished.items():
            if here != was[name]:
                raise InputError(
                    f"{saved.name} was saved with {name} {was[name]!r}, not {here!r}; leave --set "
                    f"out, or {saved.mend}"
                )
    same = facts["model"] == wanted.model
    how = wanted.loading if same else wanted.for_another(wanted.explicit)
    clf = Classifier.load(saved.path, **asdict(how))
    return clf, facts["outputs"] or {}
