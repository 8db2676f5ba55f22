"""What the list of methods says of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from adte import create_method, list_methods
from adte.core.errors import InputError
from adte.core.registry import Registry
from adte.methods import Method, method_info, register
from adte.methods.registry import preset
from adte.testing.samples import samples


def test_without_a_docstring_there_is_no_summary(monkeypatch):
    """A dataclass without one gets its signature as a docstring, which was shown."""
    monkeypatch.setattr("adte.methods.registry._METHODS", Registry("method"))

    @register("plain")
    @dataclass(kw_only=True, eq=False)
    class Plain(Method):
        pass

    assert method_info("plain").summary == ""


def test_another_module_does_not_take_the_name_of_a_preset():
    """Many presets share a class, which does not tell who made them."""
    with pytest.raises(InputError, match="'se' is registered already, by adte"):
        preset("se", method_info("se").cls, "mine", ratio=1.0)
    assert create_method("se").params["keep.ratio"] == 0.1


@pytest.mark.parametrize(
    "name", [n for n in list_methods() if "logits" not in method_info(n).cls.needs]
)
def test_who_says_that_it_needs_no_logits_looks_at_none(name):
    ours, blind = create_method(name), create_method(name)
    for sample in samples(4):
        p = blind.step(replace(sample, logits=torch.zeros_like(sample.logits)))
        assert torch.equal(ours.step(sample).probs, p.probs)
