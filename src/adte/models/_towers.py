"""A model of another library with an image tower and a text tower, under the contract of `Model`.

For prompt tuning a text tower runs on token embeddings of one's own. Towers differ in positions,
masks and pooling, but each looks its tokens up in one `nn.Embedding`. Its result is swapped for the
given embeddings while the tower runs on the ids, so nothing of the tower is written anew. The swap
is a context variable: other threads and deep copies do not see it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adte.core.errors import InputError
from adte.core.functional import wide
from adte.images import Preprocess
from adte.models.base import Model

__all__ = ["TwoTowers", "has_words", "swapped", "text_lengths", "unit"]

_embeddings: ContextVar[Tensor | None] = ContextVar("adte_token_embeddings", default=None)


def _swap(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    return _embeddings.get()  # None keeps the output


@contextmanager
def swapped(embeddings: Tensor) -> Iterator[None]:
    """Within the block every token layer answers with `embeddings` (N, T, w)."""
    token = _embeddings.set(embeddings)
    try:
        yield
    finally:
        _embeddings.reset(token)


class TwoTowers(Model):
    """A vision-language model; `net` is the library's own module.

    Features are normalised in float32 whatever the dtype of the weights.
    """

    net: Any

    def __init__(
        self, net: nn.Module, tokenizer: Any, preprocess: Preprocess, name: str, dim: int
    ) -> None:
        super().__init__()
        self.net = net
        self.tokenizer, self.preprocess = tokenizer, preprocess
        self.name, self.dim = name, dim
        self.logit_scale = float(self.net.logit_scale.detach().exp())
        bias = getattr(self.net, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach())
        if self._layer is not None:
            self._layer.register_forward_hook(_swap)

    @property
    @abstractmethod
    def _layer(self) -> nn.Module | None:
        """The layer that looks tokens up; None where it is out of reach."""

    @abstractmethod
    def _image(self, pixels: Tensor) -> Any:
        """The output of the library's image tower (N, D)."""

    @abstractmethod
    def _text(self, ids: Tensor) -> Any:
        """The output of the library's text tower (N, D)."""

    @abstractmethod
    def _ids(self, texts: Sequence[str]) -> Tensor:
        """Token ids (N, T)."""

    @property
    def offers(self) -> frozenset[str]:
        return super().offers - (set() if self._layer is not None else {"embeddings"})

    def encode_image(self, pixels: Tensor) -> Tensor:
        pixels = pixels.to(self.dtype)
        out = self._run(pixels)
        return unit(self._image(pixels) if out is None else out)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return unit(self._text(self._ids(texts)))

    def token_embeddings(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (N, T) and their embeddings (N, T, w), without positions."""
        ids, layer = self._ids(texts), self._tunable()
        return ids, layer(ids)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Unit vectors (N, D) of embedded tokens; `ids` say where the text ends."""
        self._tunable()
        with swapped(embeddings):
            return unit(self._text(ids))

    def _tunable(self) -> nn.Module:
        if (layer := self._layer) is not None:
            return layer
        raise InputError(
            f"the text tower {type(getattr(self.net, 'text', self.net)).__name__} has no token "
            "embedding to replace, so its prompts cannot be tuned; use a model with a CLIP or "
            "SigLIP text tower"
        )


def unit(x: Any) -> Tensor:
    """Unit vectors, in float32 or wider, of a tensor or of an output of transformers."""
    features: Tensor = x if isinstance(x, Tensor) else x.pooler_output
    return F.normalize(wide(features), dim=-1)


def text_lengths(ids: Tensor) -> Tensor:
    """Tokens of every row up to the first of those that repeat its last.  (N, T) → (N,)

    With padding that is the end token, where it also pads, or else the first of the padding.
    """
    other = (ids != ids[:, -1:]).flip(1)
    behind = other.long().argmax(1)  # tokens like the last; 0 where the whole row is
    return torch.where(other.any(1), ids.shape[1] - behind + 1, 1)


def has_words(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers has a vocabulary.

    Where the files are missing, transformers may hand out an empty tokenizer of the right kind.
    """
    ids = tokenizer("a photo of a cat", add_special_tokens=False)["input_ids"]
    return any(i != tokenizer.unk_token_id for i in ids)
