"""What every model must do, as far as it offers it. Each check takes a loaded model in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from adte.core.errors import InputError
from adte.models import FixedClasses, Model

__all__ = ["CHECKS", "TEXTS", "pixels"]

TEXTS = ["a photo of a cat.", "a centered satellite photo of annual crop land.", "{} texture."]
PARTS = {"features", "class weights", "image tower", "text tower", "embeddings"}


def pixels(model: Model, count: int = 2) -> Tensor:
    """Noise as the model's preprocessing would leave it."""
    size = model.preprocess.size
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, size, size, generator=generator).to(model.device, model.dtype)


def check_facts(model: Model) -> None:
    """Name, width, scale and preprocessing are there and sane."""
    assert model.name
    assert model.dim > 0
    assert 0 < model.logit_scale <= 200
    assert isinstance(model.logit_bias, float)
    assert isinstance(model.unit, bool)
    assert model.preprocess.size >= 1
    assert not any(module.training for module in model.modules()), "it is in training mode"
    assert "image tower" in model.offers
    assert model.offers <= PARTS


def check_features(model: Model) -> None:
    """Images become features of one width on the model's device, float32 or wider, then logits."""
    with torch.no_grad():
        image = model.encode_image(pixels(model))
        text = model.encode_text(TEXTS) if "text tower" in model.offers else None
        weights = model.class_weights() if isinstance(model, FixedClasses) else text
        logits = None if weights is None else model.logits(image, weights)
    assert image.shape == (2, model.dim)
    assert text is None or text.shape == (len(TEXTS), model.dim)
    for vectors in (image if model.unit else None, text):
        if vectors is not None:
            torch.testing.assert_close(vectors.norm(dim=-1).cpu(), torch.ones(len(vectors)))
    for vectors in (image, text):
        if vectors is not None:
            assert vectors.device == model.device
            assert vectors.dtype == torch.promote_types(model.dtype, torch.float32)
    if logits is not None and weights is not None:
        assert logits.shape == (2, len(weights))
        assert logits.dtype == torch.promote_types(model.dtype, torch.float32)
        assert torch.isfinite(logits).all()


def check_batch_invariance(model: Model) -> None:
    """An image's or a text's vector does not depend on its neighbours."""
    x = pixels(model)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_image(x)[1:], model.encode_image(x[1:]), rtol=0, atol=2e-5
        )
        if "text tower" not in model.offers:
            return
        together = model.encode_text(TEXTS)
        for i, text in enumerate(TEXTS):
            torch.testing.assert_close(together[i], model.encode_text([text])[0], rtol=0, atol=2e-5)


def check_inputs_matter(model: Model) -> None:
    """Other pixels and other words give other vectors: nothing is ignored."""
    with torch.no_grad():
        image = model.encode_image(pixels(model))
        assert (image[0] - image[1]).norm() > 1e-4
        if "text tower" in model.offers:
            assert torch.pdist(model.encode_text(TEXTS)).min() > 1e-4


def check_gradients(model: Model) -> None:
    """Gradients reach the pixels and the token embeddings, which rebuild `encode_text`."""
    x = pixels(model, 1).requires_grad_()
    (g,) = torch.autograd.grad(model.encode_image(x)[0, 0], x)
    assert torch.isfinite(g).all()
    assert g.abs().max() > 0
    if "embeddings" not in model.offers:
        return
    ids, embeddings = model.token_embeddings(TEXTS)
    assert ids.shape == embeddings.shape[:2]
    leaf = embeddings.detach().requires_grad_()
    vectors = model.encode_embeddings(ids, leaf)
    torch.testing.assert_close(vectors.detach(), model.encode_text(TEXTS), rtol=0, atol=1e-5)
    (g,) = torch.autograd.grad(vectors[0, 0], leaf)
    assert g[0].abs().max() > 0
    assert g[1].abs().max() == 0  # another text's tokens have no part in it
    other = model.encode_embeddings(ids, leaf.detach() + torch.randn_like(leaf))
    assert (other - vectors).abs().max() > 1e-4


def check_refusals(model: Model) -> None:
    """What it does not offer it refuses as bad input."""
    calls: dict[str, Callable[[], object]] = {
        "text tower": lambda: model.encode_text(TEXTS),
        "embeddings": lambda: model.token_embeddings(TEXTS),
    }
    for part, call in calls.items():
        if part in model.offers:
            continue
        with suppress(InputError):
            call()
            raise AssertionError(f"{model.name!r} does not offer {part}, yet gives it")
        with suppress(InputError):
            model.require({part})
            raise AssertionError(f"{model.name!r} does not offer {part}, yet says so")


def check_dtype(model: Model) -> None:
    """The weights change dtype and the vectors stay where they were.

    Float64 stands for any other dtype: it runs on every processor, bfloat16 does not.
    """
    wide = copy.deepcopy(model).double()
    assert wide.dtype == torch.float64
    assert wide.logit_scale == model.logit_scale
    with torch.no_grad():
        pairs = [(model.encode_image(pixels(model)), wide.encode_image(pixels(model).double()))]
        if "text tower" in model.offers:
            pairs.append((model.encode_text(TEXTS), wide.encode_text(TEXTS)))
    for a, b in pairs:
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def check_fingerprint(model: Model) -> None:
    """It stays with the weights in whatever dtype, and goes with them."""
    mine = model.fingerprint
    assert mine
    for dtype in (torch.bfloat16, torch.float64):
        assert copy.deepcopy(model).to(dtype).fingerprint == mine
    other = copy.deepcopy(model)
    if (first := next(other.parameters(), None)) is None:
        return
    with torch.no_grad():
        first.view(-1)[0] += 1
    assert other.fingerprint != mine


CHECKS = [f for n, f in sorted(globals().items()) if n.startswith("check_")]
