"""What every model must do, whatever its towers. Each check takes a loaded model in float32."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from adte.models import Model

TEXTS = ["a photo of a cat.", "a centered satellite photo of annual crop land.", "{} texture."]


def pixels(model: Model, count: int = 2) -> Tensor:
    size = model.preprocess.size
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, size, size, generator=generator).to(model.device, model.dtype)


def check_facts(model: Model) -> None:
    """Name, widths, scale and preprocessing are there and sane."""
    assert model.name
    assert model.dim > 0
    assert 1 <= model.logit_scale <= 200
    assert isinstance(model.logit_bias, float)
    assert model.preprocess.size >= 32
    assert not model.training
    assert callable(model.tokenizer)


def check_unit_vectors_of_one_width(model: Model) -> None:
    """Image and text meet on one unit sphere, on the model's device, in float32."""
    with torch.no_grad():
        image, text = model.encode_image(pixels(model)), model.encode_text(TEXTS)
    assert image.shape == (2, model.dim)
    assert text.shape == (len(TEXTS), model.dim)
    for vectors in (image, text):
        assert vectors.device == model.device
        assert vectors.dtype == torch.promote_types(model.dtype, torch.float32)
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(vectors)))
    logits = model.logits(image, text)
    assert logits.shape == (2, len(TEXTS))
    assert torch.isfinite(logits).all()


def check_batch_invariance(model: Model) -> None:
    """An image's or a text's vector does not depend on its neighbours."""
    x = pixels(model)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_image(x)[1:], model.encode_image(x[1:]), rtol=0, atol=2e-5
        )
        together = model.encode_text(TEXTS)
        for i, text in enumerate(TEXTS):
            torch.testing.assert_close(together[i], model.encode_text([text])[0], rtol=0, atol=2e-5)


def check_inputs_matter(model: Model) -> None:
    """Other pixels and other words give other vectors: nothing is ignored."""
    with torch.no_grad():
        image = model.encode_image(pixels(model))
        text = model.encode_text(TEXTS)
    assert (image[0] - image[1]).norm() > 1e-4
    assert torch.pdist(text).min() > 1e-4


def check_gradients(model: Model) -> None:
    """Gradients reach the pixels and the token embeddings, which rebuild `encode_text`."""
    x = pixels(model, 1).requires_grad_()
    (g,) = torch.autograd.grad(model.encode_image(x)[0, 0], x)
    assert torch.isfinite(g).all()
    assert g.abs().max() > 0
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


def check_dtype(model: Model) -> None:
    """The weights change dtype and the vectors stay where they were.

    Float64 stands for any other dtype: it runs on every processor, bfloat16 does not.
    """
    with torch.no_grad():
        want = model.encode_image(pixels(model)), model.encode_text(TEXTS)
        wide = copy.deepcopy(model).double()
        assert wide.dtype == torch.float64
        got = wide.encode_image(pixels(model).double()), wide.encode_text(TEXTS)
    for a, b in zip(want, got, strict=True):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-4)
    assert wide.logit_scale == model.logit_scale


CHECKS = [f for n, f in sorted(globals().items()) if n.startswith("check_")]
