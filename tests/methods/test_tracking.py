"""Methods that hold a class prior: what a subclass keeps beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adte.core.state import Entry, State
from adte.methods.zero_shot import ZeroShot
from adte.testing.samples import samples


@dataclass(kw_only=True, eq=False)
class Counting(ZeroShot):
    """Zero-shot that counts its images, beside the prior."""

    def entries(self) -> dict[str, Entry]:
        return {"images": Entry((), torch.int64)} | super().entries()

    def scan(self, state: State, evidence):
        state["images"] += len(evidence)
        return super().scan(state, evidence)

    def absorb(self, state: State, evidence) -> State:
        state["images"] += len(evidence)
        return super().absorb(state, evidence)


def test_entries_of_a_subclass_stay():
    method = Counting(adjust="after")
    plain = ZeroShot(adjust="after")
    for step in ("step", "learn", "step"):
        getattr(method, step)(samples(1)[0])
        getattr(plain, step)(samples(1)[0])
    mine = method.state_dict()
    assert int(mine.pop("images")) == 3
    assert mine.keys() == plain.state_dict().keys()
    assert all(torch.equal(mine[k], v) for k, v in plain.state_dict().items())


def test_entries_of_a_subclass_need_no_prior():
    method, plain = Counting(), ZeroShot()
    for sample in samples(3):
        assert torch.equal(method.step(sample).probs, plain.step(sample).probs)
        method.learn(sample)
        assert torch.equal(method.predict(sample).probs, plain.predict(sample).probs)
    assert method.state_dict() == {"images": torch.tensor(6)}
