"""The header of a classifier's state file, beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from adte.classifier.learned import Lineage
from adte.core.errors import InputError, StateError, brief
from adte.core.schema import Bounds, Count, Positive, Scalar, read_fields
from adte.files.journal import Mark
from adte.images import Preprocess, Views
from adte.models.prompts import Prompts

__all__ = ["TEMPERATURES", "Facts", "StateFacts", "check_more", "read_state"]

Facts = Mapping[str, Any]  # as `Classifier.facts` has them, and `read_state`
TEMPERATURES = Bounds(low=1e-3, high=1e3)  # of confidence
Names = Annotated[list[str], Bounds(low=1)]


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """The header of a state file. What has a default is missing in older files."""

    format: Positive
    version: str
    model: str
    fingerprint: str | None = None
    preprocess: Preprocess | None = None
    scale: float | None = None
    class_ids: Names | None = None  # of a model of fixed classes
    classes: Names
    prompts: Prompts
    method: str
    options: dict[str, Scalar]
    views: Views
    auto: bool = False
    seen: Count
    frozen: bool
    temperature: Annotated[float, TEMPERATURES] = 1.0
    lineage: Lineage = field(default_factory=Lineage)
    outputs: dict[str, Mark] | None = None  # how much of each output the state covers


def read_state(facts: object, name: str) -> dict[str, Any]:
    """The facts of a classifier's state file, checked, or a `StateError` that names what is wrong.

    In format 1, of adte 0.1, `seen` is 0.
    """
    if isinstance(facts, dict) and facts.get("format") == 1:
        facts = {"seen": 0, **facts}
    try:
        known = StateFacts(**read_fields(StateFacts, facts, more=True))
    except ValueError as error:
        raise StateError(f"the header of {name!r} is damaged: {error}; save it again") from None
    return asdict(known) | {"lineage": known.lineage}


def check_more(more: Mapping[str, Any], facts: Facts) -> None:
    """Refuse further facts of a state that are facts of every state, or that JSON cannot hold."""
    if taken := sorted(more.keys() & facts.keys() - {"frozen"}):
        raise InputError(f"{taken[0]!r} is a fact of every state; give yours another name")
    if not isinstance(more.get("frozen", False), bool):
        raise InputError(f"frozen={brief(more['frozen'])} is neither True nor False")
    try:
        json.dumps(more)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the facts {brief(more)} cannot be written as JSON ({error}); give texts, numbers and "
            "lists of them"
        ) from error
