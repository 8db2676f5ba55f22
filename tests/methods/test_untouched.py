"""Methods that adapt a tower or its prompts leave the user's model as it was, in whatever mode."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch

import prompt_oracle
import tower_oracle
from adte import create_method
from adte.testing.small import SmallModel

OPEN = {"tau_ent": 1.1, "ent0": 1.0, "tau_plpd": -1.0}
TOWERS = [
    ("tent", {}),
    ("tent", {"batch": 2}),
    ("tent", {"optimiser": "adam", "lr": 1e-2}),
    ("deyo", OPEN),
    ("deyo", {**OPEN, "entropy": "adaptive", "batch": 2}),
    ("memo", {}),
    ("memo", {"entropy": "adaptive", "parameters": "norm"}),
]
PROMPTS = [
    ("tpt", {}),
    ("tpt", {"chunk": 2, "steps": 3}),
    ("ctpt", {}),
    ("difftpt", {"chunk": 2}),
    ("mltta", {"chunk": 2}),
    ("dynaprompt", {"chunk": 2, "prompts": 3}),
]


@pytest.mark.parametrize(("name", "options"), TOWERS, ids=str)
@pytest.mark.parametrize("kind", ["fixed", "training", "clip"])
def test_the_image_tower(name, options, kind):
    model = SmallModel() if kind == "clip" else tower_oracle.Net()
    make = tower_oracle.clip_image if kind == "clip" else tower_oracle.image
    images = [make(model, seed=i) for i in range(4)]
    if kind == "training":
        model.train()
    tower_oracle.check_untouched(create_method(name, **options), model, images)


@pytest.mark.parametrize(("name", "options"), PROMPTS, ids=str)
def test_the_text_tower(name, options):
    model, samples = prompt_oracle.world(3)
    model.positions.requires_grad_(False)
    model.mix.weight.grad = torch.ones_like(model.mix.weight)
    before, method = prompt_oracle.trace(model), create_method(name, **options)
    first = [method.step(s) for s in samples]
    assert prompt_oracle.untouched(before, prompt_oracle.trace(model))
    assert not any(t.requires_grad for p in first for t in (p.probs, p.entropy))
    for twin in (copy.deepcopy(method), pickle.loads(pickle.dumps(method)), method.clone()):
        assert twin._learner is None  # copies do not carry the model
    method.reset()
    with torch.inference_mode():
        frozen = [replace(s, features=s.features.clone()) for s in samples]
        again = [method.step(s) for s in frozen]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.probs, b.probs)
