"""Run a text tower on token embeddings of one's own, for prompt tuning.

Towers differ in positions, masks and pooling, but each looks its tokens up in one `nn.Embedding`.
Its result is swapped for the given embeddings while the tower runs on the ids, so nothing of the
tower is written anew. The swap is a context variable: other threads and deep copies do not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from adte.core.errors import InputError

__all__ = ["has_words", "swappable", "swapped", "text_lengths", "untunable"]

_given: ContextVar[Tensor | None] = ContextVar("adte_token_embeddings", default=None)


def _swap(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    return _given.get()  # None keeps the output


def swappable(layer: nn.Module) -> nn.Module:
    """Make the output of a token embedding replaceable."""
    layer.register_forward_hook(_swap)
    return layer


@contextmanager
def swapped(embeddings: Tensor) -> Iterator[None]:
    """Within the block, every layer that was made swappable answers with `embeddings` (N, T, w)."""
    token = _given.set(embeddings)
    try:
        yield
    finally:
        _given.reset(token)


def text_lengths(ids: Tensor) -> Tensor:
    """Tokens of every row up to the first of those that repeat its last.  (N, T) → (N,)

    With padding that is the end token, where it also pads, or else the first of the padding.
    """
    other = (ids != ids[:, -1:]).flip(1)
    behind = other.long().argmax(1)  # tokens like the last; 0 where the whole row is
    return torch.where(other.any(1), ids.shape[1] - behind + 1, 1)


def untunable(tower: object) -> InputError:
    """The error for a text tower whose tokens cannot be got at."""
    return InputError(
        f"the text tower {type(tower).__name__} has no token embedding to replace, so its prompts "
        "cannot be tuned; use a model with a CLIP or SigLIP text tower"
    )


def has_words(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers has a vocabulary.

    Where the files are missing, transformers may hand out an empty tokenizer of the right kind.
    """
    ids = tokenizer("a photo of a cat", add_special_tokens=False)["input_ids"]
    return any(i != tokenizer.unk_token_id for i in ids)
