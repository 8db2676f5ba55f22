"""Class names to class weights: prompts, their ensemble, and a cache of the result.

A class has one or more prompts: templates filled with its name, sentences that describe it, or
both. With unit text vectors t, the class weight is the unit vector of their mean (CLIP, CuPL):

    w_k = m_k / ‖m_k‖,   m_k = (1/n_k) Σ_i t_ki

Averaging is in embedding space, never over logits, and n_k may differ between classes.

References: Radford et al. 2021 (templates), Pratt et al. 2023 (CuPL, descriptions), Zhou et al.
2022 (CoOp, one template for each data set).
"""

from __future__ import annotations

import json
import os
import time
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from itertools import accumulate, pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from adte.core.errors import InputError, StateError, brief
from adte.core.options import check, option
from adte.core.templates import SINGLE, template_set, template_sets
from adte.files.states import load_state, save_state
from adte.models import Model, check_model
from adte.models.base import check_features

__all__ = [
    "SINGLE",
    "Prompts",
    "check_classes",
    "check_templates",
    "class_weights",
    "encode_prompts",
    "ensemble",
    "note_repeats",
    "read_descriptions",
    "template_sets",
]

PATIENCE = 5.0  # seconds before a warning says how long the prompts take
BUNDLED = {"tiny-imagenet": "tiny-descriptions.json"}  # descriptions that come with the package
Use = Literal["templates", "descriptions", "both"]
Descriptions = Mapping[str, Sequence[str]]
Templates = str | Sequence[str]


# ---------------------------------------------------------------------- names and templates


def check_classes(classes: Sequence[str]) -> list[str]:
    """Class names as a list. Repeats are allowed, since classes are told apart by index."""
    if isinstance(classes, str):
        raise InputError(f"classes={classes!r} is one text; pass a list of names")
    if isinstance(classes, set | frozenset):
        raise InputError(
            f"classes={brief(classes)} have no order, which classes are told apart by; pass a list "
            "of names, as sorted() makes it"
        )
    if isinstance(classes, Mapping):
        raise InputError(
            f"classes={brief(classes)} may mean its keys or its values; pass a list of names, as "
            "list(x) or list(x.values()) makes it"
        )
    try:
        given: list[Any] = list(classes)
    except TypeError as error:
        raise InputError(f"classes={classes!r} are no names; pass a list of names") from error
    odd = [
        i for i, c in enumerate(given) if isinstance(c, bool) or not isinstance(c, str | Integral)
    ]
    if odd:
        at, name = odd[0], given[odd[0]]
        raise InputError(f"class name number {at + 1} is {brief(name)}, which is no text; name it")
    names = [str(c).strip() for c in given]
    if not names:
        raise InputError("no class names were given; pass at least one")
    if blank := [i for i, n in enumerate(names) if not n]:
        raise InputError(f"class name number {blank[0] + 1} is empty; give it a name or remove it")
    if empty := next((n for n in names if "\0" in n), None):
        raise InputError(f"class name {empty!r} has a zero byte in it; write it as UTF-8 text")
    note_repeats(names, stacklevel=4)
    alike: dict[str, str] = {}
    for name in names:
        first = alike.setdefault(_fold(name), name)
        if first != name:
            warnings.warn(
                f"class names {first!r} and {name!r} differ only in case or spelling, which models "
                "hardly tell apart; keep one of them, unless they mean two things",
                stacklevel=3,
            )
            break
    return names


def note_repeats(names: Sequence[str], stacklevel: int = 3) -> None:
    """Warn of a class name that occurs more than once."""
    if len(set(names)) < len(names):
        repeated = min(n for n, times in Counter(names).items() if times > 1)
        warnings.warn(
            f"class name {repeated!r} occurs more than once; classes are kept apart by "
            "index, and a tie goes to the first",
            stacklevel=stacklevel,
        )


def check_templates(templates: Templates) -> list[str]:
    """Templates as a list: from a set's name, one text or several, each with a place for the name.

    >>> check_templates("dtd")
    ['{} texture.']
    """
    if isinstance(templates, str):
        if named := template_set(templates):
            return list(named)
        if "{" not in templates:
            raise InputError(
                f"template {templates!r} must hold {{}} once, where the class name goes, or be "
                f"the name of a set: {', '.join(template_sets())}"
            )
        templates = [templates]
    given = list(templates) if isinstance(templates, Iterable) else [templates]
    if not given:
        raise InputError(
            "no prompt template was given; pass at least one, such as 'a photo of a {}.'"
        )
    for t in given:
        if not isinstance(t, str):
            raise InputError(
                f"template {brief(t)} is no text; give one such as 'a photo of a {{}}.'"
            )
        if t.count("{}") != 1:
            raise InputError(f"template {t!r} must hold {{}} once, where the class name goes")
    return given


# ---------------------------------------------------------------------- descriptions


def read_descriptions(source: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Sentences by class name, from a file in CuPL's format {class name: [sentence, …]}.

    A JSON list of lists is read by class index, under the keys "0", "1", …

    Args:
        source: a path, or "tiny-imagenet" for the descriptions that come with the package.

    >>> read_descriptions("tiny-imagenet")["acorn"][0]
    'Acorn: a small brown nut in a rough cup.'
    """
    name = str(source)
    if name in BUNDLED:
        text = resources.files("adte").joinpath("assets", BUNDLED[name]).read_text("utf-8")
    else:
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the description file {name!r} ({error}); give a JSON file, or one "
                f"of: {', '.join(BUNDLED)}"
            ) from error
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{name!r} is not JSON ({why}); save the descriptions again") from error
    if isinstance(table, list):
        table = {str(i): sentences for i, sentences in enumerate(table)}
    if not isinstance(table, dict):
        raise InputError(
            f"{name!r} is not in CuPL's format; write {{class name: [sentence, …]}} in it, or a "
            "list of lists by class index"
        )
    for key, sentences in table.items():
        texts = sentences if isinstance(sentences, list) else [None]
        if not texts or not all(isinstance(s, str) and s.strip() for s in texts):
            raise InputError(
                f"in {name!r}, class {key!r} has no list of sentences; give it at least one text"
            )
    return {str(key): tuple(s.strip() for s in sentences) for key, sentences in table.items()}


def _fold(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).casefold().replace("_", " ").split())


def match_descriptions(table: Descriptions, classes: Sequence[str]) -> list[Sequence[str] | None]:
    """The sentences of each class, by index; None where there are none.

    Keys that are the numbers 0 … L−1 are class indices. Other keys are names: as written, or else
    with case, underscores and spaces folded.
    """
    if set(table) == {str(i) for i in range(len(classes))}:
        return [table[str(i)] for i in range(len(classes))]
    folded = {_fold(key): key for key in reversed(list(table))}
    return [table.get(c) or table.get(folded.get(_fold(c), "")) for c in classes]


# ---------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Prompts:
    """The prompts of each class: templates with its name, or sentences that describe it.

    >>> Prompts(("a {}.", "the {}.")).texts(["polar_bear"])
    [['a polar bear.', 'the polar bear.']]
    """

    templates: tuple[str, ...] = option(SINGLE, "texts with {} for the class name")
    descriptions: Mapping[str, Sequence[str]] | None = option(
        None, "sentences that describe each class, by its name or index"
    )
    use: Literal["templates", "descriptions", "both"] | None = option(
        None, "which of them to use; by default the descriptions, if there are any"
    )
    allow_missing: bool = option(
        False, "use the templates for classes without descriptions, instead of an error"
    )
    name: str = option("", "name of the prompts in reports")

    def __post_init__(self) -> None:
        if self.use is None:
            object.__setattr__(self, "use", "descriptions" if self.descriptions else "templates")
        check(self, "prompts")
        if self.use != "templates" and self.descriptions is None:
            raise InputError(f"use={self.use!r} needs descriptions; pass a file of them")
        object.__setattr__(self, "templates", tuple(check_templates(self.templates)))

    @classmethod
    def of(
        cls,
        templates: Templates | Prompts = "single",
        descriptions: str | os.PathLike[str] | Descriptions | None = None,
        use: Use | None = None,
        allow_missing: bool = False,
    ) -> Prompts:
        """Make prompts from template sets and files of descriptions.

        Args:
            templates: name of a template set, one template or several; `Prompts` are returned as
                they are.
            descriptions: a JSON file, "tiny-imagenet" for those of the package, or a mapping from
                class names to sentences.
            use: "templates", "descriptions" or "both"; by default only the descriptions if they are
                given, as in CuPL.
            allow_missing: use the templates for classes without descriptions, instead of an error.
        """
        if isinstance(templates, Prompts) and descriptions is None:
            return templates
        chosen = tuple(check_templates(templates))  # type: ignore[arg-type]
        source = descriptions if isinstance(descriptions, str | os.PathLike) else None
        table = read_descriptions(source) if source is not None else descriptions
        use = use or ("templates" if table is None else "descriptions")
        words = templates if isinstance(templates, str) else f"{len(chosen)} templates"
        file = Path(source).name if source is not None else "descriptions"
        label = {"templates": words, "descriptions": file, "both": f"{words} + {file}"}.get(use, "")
        return cls(chosen, table, use, allow_missing, label)  # type: ignore[arg-type]

    def texts(self, classes: Sequence[str]) -> list[list[str]]:
        """The prompts of each class, in the order of the classes.

        Raises:
            InputError: if classes have no descriptions and `allow_missing` is False.
        """
        names = [c.replace("_", " ") for c in classes]
        filled = [[t.replace("{}", n) for t in self.templates] for n in names]
        if self.use == "templates" or self.descriptions is None:
            return filled
        found = match_descriptions(self.descriptions, classes)
        if missing := [c for c, sentences in zip(classes, found, strict=True) if not sentences]:
            self._report(missing, len(classes))
        both = self.use == "both"
        return [
            [*(f if both or not sentences else []), *(sentences or [])]
            for f, sentences in zip(filled, found, strict=True)
        ]

    def _report(self, missing: Sequence[str], total: int) -> None:
        shown = ", ".join(map(repr, missing[:10])) + (", …" if len(missing) > 10 else "")
        what = f"the descriptions {self.name!r} lack {len(missing)} of {total} classes: {shown}"
        if not self.allow_missing:
            raise InputError(
                f"{what}; add them, or pass allow_missing (--allow-missing) to use templates there"
            )
        warnings.warn(f"{what}; these use the templates", stacklevel=4)

    def describe(self) -> dict[str, Any]:
        """Facts about the prompts, as results record them."""
        table = self.descriptions or {}
        digest = sha256(json.dumps({k: list(v) for k, v in table.items()}).encode()).hexdigest()
        return {
            "name": self.name,
            "use": self.use,
            "templates": list(self.templates),
            "descriptions": len(table),
            "sentences": sum(map(len, table.values())),
            "digest": digest[:16] if table else None,
        }


# ---------------------------------------------------------------------- class weights


def encode_prompts(model: Model, texts: Iterable[str], batch: int = 256, note: str = "") -> Tensor:
    """Unit vectors (P, D), float32, of texts of any number; a repeated text is encoded once.

    Where it takes long a warning says how long, and `note` after it.
    """
    texts = list(texts)
    unique = sorted(set(texts), key=lambda t: (len(t), t))  # texts of a batch are of like length
    parts, start, warned = [], time.monotonic(), False
    with torch.no_grad():
        for i in range(0, len(unique), batch):
            some = unique[i : i + batch]
            with model.at_work(len(some)):
                found = check_features(model, "encode_text", model.encode_text(some), len(some))
            parts.append(found.float())
            done, spent = i + len(parts[-1]), time.monotonic() - start
            left = spent * (len(unique) / done - 1)
            if min(spent, left) > PATIENCE and not warned:
                warned, about = True, f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
                text = f"encoding {len(unique):,} prompts, about {about} more{note}"
                warnings.warn(text, stacklevel=3)
    row = {text: i for i, text in enumerate(unique)}
    return torch.cat(parts)[[row[t] for t in texts]]


def ensemble(vectors: Tensor, counts: Sequence[int]) -> Tensor:
    """Unit mean of each segment: the first `counts[0]` of vectors (P, D), then the next, … (L, D).

    >>> ensemble(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), [2])
    tensor([[0.8944, 0.4472]])
    """
    if len(vectors) != sum(counts) or min(counts, default=0) < 1:
        raise InputError(
            f"{len(vectors)} vectors cannot be cut into segments {list(counts)}; give the number "
            "of prompts of each class, at least one"
        )
    offsets = list(accumulate(counts, initial=0))
    means = [vectors[a:b].mean(0) for a, b in pairwise(offsets)]
    return torch.nn.functional.normalize(torch.stack(means), dim=-1)


def class_weights(
    model: Model,
    classes: Sequence[str],
    templates: Templates | Prompts = SINGLE,
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Tensor:
    """Compute the weight vector of each class from its prompts.

    Each prompt is encoded into a unit vector; those of a class are averaged, and the mean is scaled
    to unit length.

    Args:
        model: a model with a text tower.
        classes: class names.
        templates: templates with {} for the name, the name of a template set, or `Prompts`.
        cache: folder to keep the result in; by default the one that the environment variable
            ADTE_CACHE names, if any. Other weights, dtypes or prompts have entries of their own.

    Returns:
        Unit vectors (L, D), float32.

    Raises:
        InputError: if the model has no text tower.
    """
    if "text tower" not in check_model(model).offers:
        raise InputError(
            f"model {model.name!r} has fixed classes and no text tower; choose "
            "a vision-language model, or use its own logits"
        )
    prompts = Prompts.of(templates)
    texts = prompts.texts(classes)
    folder = cache or os.environ.get("ADTE_CACHE")
    entry = _entry(Path(folder), model, texts) if folder else None
    if entry is not None and (kept := _recall(entry)) is not None:
        return kept.to(model.device)
    times = f" × {len(prompts.templates):,} templates" if prompts.use == "templates" else ""
    note = f" ({len(texts):,} classes{times})"
    if not folder:
        note += "; set ADTE_CACHE to a folder, and they are kept there"
    vectors = encode_prompts(model, (t for of_class in texts for t in of_class), note=note)
    weights = ensemble(vectors, [len(of_class) for of_class in texts])
    if entry is not None:
        facts = {"kind": "class weights", "model": model.name, "prompts": prompts.describe()}
        save_state(entry, {"class_weights": weights}, facts)
    return weights


def _entry(folder: Path, model: Model, texts: list[list[str]]) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot use {str(folder)!r} as a cache folder ({error.strerror}); give a folder that "
            "can be written to, by cache= or ADTE_CACHE"
        ) from error
    key = json.dumps([model.name, model.fingerprint, str(model.dtype), texts])
    return folder / f"text-{sha256(key.encode()).hexdigest()[:40]}.safetensors"


def _recall(entry: Path) -> Tensor | None:
    if not entry.is_file():
        return None
    try:
        return load_state(entry)[0]["class_weights"]
    except (StateError, KeyError):
        warnings.warn(f"the cache entry {str(entry)!r} is damaged; it is made anew", stacklevel=3)
        return None
