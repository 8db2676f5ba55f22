"""Options that carry their help: what `describe` lists and what `parse` accepts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.core.options import check, describe, option, options, parse, unread
from adte.evaluate.simulate import SimulatedStream
from adte.images import Views
from adte.methods import create_method, list_methods


@dataclass
class Knobs:
    beta: float = option(0.9, "upper end of q", above=0, below=1)
    count: int = option(3, "how many")
    keep: int | None = option(None, "how many, or as the ratio says")
    rate: float | None = option(0.5, "a share, or none")
    mixed: int | float = option(1, "a whole number if it is one")
    flag: bool = option(False, "a switch")
    mode: Literal["fast", "slow-ish"] = option("fast", "which way")
    name: str = option("x", "any text")
    lower_case: float = option(0.1, "spelt with an underscore")
    hidden: int = 7  # no help: not an option
    cache: list[int] = field(default_factory=list)


# --------------------------------------------------------------------------- describe


def test_describe_lists_every_option_in_order() -> None:
    rows = describe(Knobs)
    assert [row["name"] for row in rows] == [
        "beta", "count", "keep", "rate", "mixed", "flag", "mode", "name", "lower_case"
    ]  # fmt: skip
    by_name = {row["name"]: row for row in rows}
    assert by_name["beta"] == {
        "name": "beta", "default": 0.9, "choices": None, "bounds": "above 0 and below 1",
        "only": [], "help": "upper end of q",
    }  # fmt: skip
    assert by_name["count"]["bounds"] is None
    assert by_name["mode"]["choices"] == ["fast", "slow-ish"]
    assert by_name["keep"]["default"] is None
    assert by_name["flag"]["default"] is False


# --------------------------------------------------------------------------- parse


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("beta", "0.8", 0.8),
        ("beta", "1e-3", 1e-3),
        ("beta", "1", 1.0),
        ("count", "12", 12),
        ("count", "-4", -4),
        ("keep", "5", 5),
        ("keep", "none", None),
        ("keep", "None", None),
        ("rate", "0.25", 0.25),
        ("rate", "NONE", None),
        ("mixed", "2", 2),
        ("mixed", "2.5", 2.5),
        ("flag", "true", True),
        ("flag", "False", False),
        ("mode", "slow-ish", "slow-ish"),
        ("name", "none", "none"),
        ("name", "", ""),
        ("lower-case", "0.2", 0.2),
        ("lower_case", "0.2", 0.2),
    ],
)
def test_parse_types_its_texts(name: str, text: str, value: object) -> None:
    got = parse(Knobs, {name: text})
    assert got == {name.replace("-", "_"): value}
    (parsed,) = got.values()
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("beta", "much"), ("beta", ""), ("beta", "none"), ("count", "1.5"), ("count", "none"),
     ("keep", "some"), ("rate", "half"), ("flag", "yes"), ("flag", "1"), ("mode", "Fast"),
     ("mode", "slow"), ("mixed", "two")],
)  # fmt: skip
def test_a_bad_value_is_named(name: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        parse(Knobs, {name: text})
    assert name in str(error.value)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("name", ["bata", "hidden", "cache", "Beta", ""])
def test_an_unknown_option_is_an_error(name: str) -> None:
    """A field without help is none either."""
    with pytest.raises(InputError, match="unknown option") as error:
        parse(Knobs, {"count": "1", name: "0.5"})
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta": 1.0}, r"beta=1.0 of the knobs must be above 0 and below 1; choose e.g. 0.9"),
        ({"beta": 0}, "above 0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"beta": float("inf")}, "beta=inf of the knobs is too large; choose e.g. 0.9"),
        ({"count": 2**70}, "is too large"),
        ({"count": float("nan")}, "count=nan of the knobs is not a number"),
        ({"count": 1.5}, "count=1.5 of the knobs is not a whole number; choose e.g. 3"),
        ({"count": float("inf")}, "too large"),
        ({"keep": 1.5}, "whole number; leave it out or give None"),
        ({"count": np.ones(2)}, "is not a number"),
        ({"mode": np.ones(2)}, "mode"),
        ({"count": "3"}, "count='3' of the knobs is not a number"),
        ({"count": None}, "count=None of the knobs is not a number"),
        ({"mode": "fats"}, "did you mean 'fast'"),
        ({"mode": None}, "mode"),
        ({"flag": "false"}, "flag='false' of the knobs is no switch; give True or False"),
        ({"flag": 1}, "flag=1 of the knobs is no switch"),
        ({"flag": None}, "flag=None of the knobs is no switch"),
    ],
    ids=str,
)
def test_check_refuses_what_an_option_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(Knobs(**values), "the knobs")


def test_numbers_become_those_of_python() -> None:
    method = create_method("tda", positive_size=3.0, positive_weight=np.float32(2))
    assert [type(method.params[n]) for n in ("positive_size", "positive_weight")] == [int, float]
    assert create_method("adte", warmup=np.int64(2)).params["prior.warmup"] == 2
    json.dumps(method.params)
    views = Views(count=True, flip=True, seed=True)
    assert [type(x) for x in (views.count, views.flip, views.seed)] == [int, float, int]


def test_a_part_of_another_kind_is_named_with_the_mend() -> None:
    with pytest.raises(InputError, match=r"prior takes PriorOptions, not Views; give prior=Prior"):
        type(create_method("adte"))(prior=Views())  # type: ignore[call-arg]


def test_an_option_that_is_declared_anew_keeps_its_bounds() -> None:
    for name in list_methods():
        cls = type(create_method(name))
        for f in (f for f in fields(cls) if "bounds" in f.metadata):
            for base in cls.__mro__[1:]:
                before = getattr(base, "__dataclass_fields__", {}).get(f.name)
                if before is not None:
                    assert f.metadata["bounds"] == before.metadata["bounds"], (name, f.name)


def test_check_lets_pass_what_it_can_be() -> None:
    check(Knobs())
    check(Knobs(beta=0.5, keep=None, rate=None, mixed=2.5, count=-1, mode="slow-ish"))
    check(Knobs(beta=np.float32(0.5), count=np.int64(2)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list_methods())
def test_no_method_takes_a_number_that_is_none(name: str) -> None:
    """Every numeric option, those of parts too."""
    for o in options(type(create_method(name))):
        if {*(get_args(o.hint) or (o.hint,))} <= {int, float, type(None)}:
            for odd in (float("nan"), "much"):
                with pytest.raises(InputError, match=o.path[-1]):
                    create_method(name, **{o.name: odd})


OTHERS = {
    "entropy.q": 0.1, "entropy.alpha": 0.5, "entropy.beta": 0.6, "entropy.rule": "zscore",
    "entropy.direction": "paper", "entropy.form": "paper", "entropy.few": 0, "prior.bank": "fifo",
    "prior.size": 1, "prior.threshold": 9.0, "prior.norm": "l2", "prior.eps": 1.0,
    "prior.max_iter": 1, "prior.damping": 1.0, "prior.empty": "zero",
    "prior.seed": 5, "prior.iterate": "last", "adjust.tau": 3.0,
}  # fmt: skip


def _told(name: str, **options: Any) -> list[list[float]]:
    method = create_method(name, **options)
    stream = SimulatedStream(images=30, classes=4, views=4, imbalance=8.0, seed=1)
    return [method.step(sample).probs.tolist() for sample, _ in stream]


def test_what_is_said_to_have_no_effect_has_none():
    every = {o.name for o in options(type(create_method("se")))}
    limited = set(unread(create_method("se"), every))
    assert limited == OTHERS.keys()  # each is tried below
    for settings in ({}, {"place": "before"}):
        plain, idle = _told("se", **settings), unread(create_method("se", **settings), every)
        for option_name in idle:
            assert _told("se", **settings, **{option_name: OTHERS[option_name]}) == plain
    assert "prior.clip" not in limited
    assert unread(create_method("te"), ["entropy.q"]) == {}
    both = unread(create_method("se"), ["prior.size"])["prior.size"]
    assert both == "estimator=fixed-point and bank=gap or gap-larger or fifo or reservoir"
    more = unread(create_method("se", bank="gap"), ["prior.size", "prior.bank"])
    assert set(more.values()) == {"estimator=fixed-point"}
    idle = {"entropy.q": "kind=tsallis", "prior.seed": "bank=reservoir"}
    assert unread(create_method("adte"), every) == idle


def test_options_of_what_is_no_dataclass_are_an_error() -> None:
    class Forgotten(Knobs):
        extra: float = option(1.0, "left out by everyone")

    with pytest.raises(InputError, match="Forgotten has the option 'extra' and is no dataclass"):
        describe(Forgotten)
