"""Turns, medians, threads, and what every benchmark returns."""

from __future__ import annotations

import time

import torch

from adte.bench import timing
from adte.core.machine import threads


def test_candidates_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    found = timing.medians({n: lambda n=n: calls.append(n) for n in "abc"}, 3)
    assert calls == list("abc" + "abc" + "cba" + "abc")
    assert set(found) == set("abc")


def test_a_median_ignores_one_busy_moment() -> None:
    naps = iter([0.0, 0.002, 0.08, 0.002])
    found = timing.medians({"nap": lambda: time.sleep(next(naps))}, 3)
    assert 0.002 <= found["nap"] < 0.04


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
