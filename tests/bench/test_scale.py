"""Many classes: a batch of images takes little more than its logits, prompts in chunks less."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adte.core.batch import Batch, Context
from adte.core.errors import InputError
from adte.core.machine import PeakMemory
from adte.methods import create_method
from adte.methods.prompt_tuning import PromptLearner
from adte.models import load_model

CLASSES, IMAGES, VIEWS = 20_000, 16, 64
LOGITS = 4 * CLASSES * IMAGES * VIEWS  # bytes, 82 MB
ROOM = 48 << 20  # what allocators keep


@pytest.fixture(scope="module")
def given() -> tuple[Context, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    weights = normalize(torch.randn(CLASSES, 64, generator=g), dim=-1)
    return Context(weights, 100.0), normalize(torch.randn(IMAGES, VIEWS, 64, generator=g), dim=-1)


class Largest(TorchDispatchMode):
    """The most bytes of any tensor that is made inside."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.bytes, self.known = 0, {x.untyped_storage().data_ptr() for x in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return out


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adte", "tilt", "zero", "zero-shot"])
def test_no_step_makes_a_second_batch(given: tuple[Context, torch.Tensor], method: str) -> None:
    """Entropies and means go image by image; only features, answers and priors are of all."""
    context, features = given
    linear = {"estimator": "marginal"} if method == "adte" else {}
    rule = create_method(method, **linear)
    rule.step(context.batch(features[:1]))
    with Largest() as made:
        batch = context.batch(features)
    assert made.bytes == LOGITS
    with Largest(batch.logits) as made:
        predictions = rule.step(batch)
    assert predictions.probs.shape == (IMAGES, CLASSES)
    assert made.bytes <= LOGITS // 8


@pytest.mark.slow
def test_memory_of_a_batch(given: tuple[Context, torch.Tensor]) -> None:
    context, features = given
    context.batch(features[:2])  # what is made once
    with PeakMemory() as peak:
        batch = context.batch(features)
    if not peak.exact:
        pytest.skip("the system does not tell the peak of a block")
    assert len(batch) == IMAGES
    assert peak.bytes < LOGITS + ROOM  # twice as much, were they stacked


def test_logits_are_the_same_product_with_and_without_gradients() -> None:
    g = torch.Generator().manual_seed(0)
    weights, features = torch.randn(50, 8, generator=g), torch.randn(3, 4, 8, generator=g)
    for bias in (0.0, -10.0):
        plain = Context(weights, 7.0, bias=bias).batch(features).logits
        tuned = Context(weights.clone().requires_grad_(), 7.0, bias=bias).batch(features).logits
        assert tuned.requires_grad
        assert torch.equal(plain, tuned.detach())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["logits", "features", "pixels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_not_finite_is_found(bad: float, name: str, dtype: torch.dtype) -> None:
    parts = {
        "logits": torch.randn(2, 3, 5).to(dtype),
        "features": torch.nn.functional.normalize(torch.randn(2, 3, 4), dim=-1).to(dtype),
        "pixels": torch.randn(2, 3, 3, 6, 6).to(dtype),
    }
    Batch(**parts).check()
    parts[name].view(-1)[7] = bad
    with pytest.raises(InputError, match=f"{name} hold NaN or infinite values"):
        Batch(**parts).check()


def test_numbers_beyond_float32_are_finite() -> None:
    Batch(torch.full((1, 2, 3), 1e300, dtype=torch.float64)).check()


def kept(learner: PromptLearner) -> int:
    """Bytes that wait for the way back, the weights and the inputs aside."""
    given = (learner.ids, learner.embeddings, *learner.twin.parameters())
    known = {x.untyped_storage().data_ptr() for x in given}
    found: dict[int, int] = {}

    def note(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    context = learner.initial.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        weights = learner.class_weights(context)
    assert weights.requires_grad
    return sum(found.values())


def test_chunks_keep_what_waits_from_growing_with_the_classes() -> None:
    model = load_model("tiny")
    names = [f"object {i}" for i in range(96)]
    whole, half = (kept(PromptLearner(model, names[:n], chunk=0)) for n in (96, 48))
    assert whole == pytest.approx(2 * half, rel=0.3)
    assert kept(PromptLearner(model, names, chunk=16)) < half / 20
