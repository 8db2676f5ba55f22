"""The contracts of models: two towers into one unit sphere, or a classifier of fixed classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adte.errors import InputError
from adte.views import Preprocess

__all__ = ["ImageModel", "ImageOnly", "Model"]


class Model(nn.Module):
    """A vision-language model with two towers.

    Gradients flow through both `encode_*`; callers that do not want them wrap the call in
    `torch.inference_mode()`.

    Attributes:
        name: what `load_model` was asked for; it is saved with a classifier's state.
        dim: width D of the shared space.
        preprocess: how pixels must be prepared.
        logit_scale: factor on the cosine (100 for CLIP), already exponentiated.
        logit_bias: added to every logit (0 but for SigLIP); softmax does not see it.
    """

    name: str
    dim: int
    preprocess: Preprocess
    logit_scale: float
    logit_bias: float = 0.0

    @abstractmethod
    def encode_image(self, pixels: Tensor) -> Tensor:
        """Pixels (N, 3, H, W), normalised, to unit vectors (N, D)."""

    @abstractmethod
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Texts to unit vectors (N, D)."""

    def token_embeddings(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (N, T), padded, and their embeddings (N, T, w), before positions are added.

        With `encode_embeddings` this opens the text tower for prompt tuning; not every model can.
        """
        raise InputError(
            f"the text tower of model {self.name!r} does not take embeddings; "
            "choose another model for prompt tuning"
        )

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """The rest of `encode_text`: ids (N, T), embeddings (N, T, w) → unit vectors (N, D)."""
        raise InputError(
            f"the text tower of model {self.name!r} does not take embeddings; "
            "choose another model for prompt tuning"
        )

    def logits(self, features: Tensor, class_weights: Tensor) -> Tensor:
        """Features (…, D) and unit class weights (L, D) to logits (…, L), float32 or wider."""
        dtype = torch.promote_types(features.dtype, torch.float32)
        cosines = features.to(dtype) @ class_weights.to(features.device, dtype).T
        return self.logit_scale * cosines + self.logit_bias

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class ImageModel(nn.Module):
    """A classifier with fixed classes and no text tower.

    Gradients flow through `logits`; callers turn them off.

    Attributes:
        name: what `load_model` was asked for.
        classes: names by label.
        ids: stable ids by label, such as WordNet's; the labels as text where there are none.
        preprocess: how pixels must be prepared.
    """

    name: str
    classes: tuple[str, ...]
    ids: tuple[str, ...]
    preprocess: Preprocess

    @abstractmethod
    def logits(self, pixels: Tensor) -> Tensor:
        """Pixels (N, 3, H, W), normalised, to logits (N, L), float32 or wider."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class ImageOnly(Model):
    """A classifier of fixed classes in the place of a model with two towers.

    An image's features are its logits for the chosen classes, and the weights of those classes are
    the identity, so that whatever works on logits, pixels or the image tower works here too.

    Args:
        inner: the classifier. columns: which of its classes, in the order wanted.
    """

    logit_scale = 1.0

    def __init__(self, inner: ImageModel, columns: Sequence[int]) -> None:
        super().__init__()
        self.inner, self.columns = inner, list(columns)
        self.name, self.preprocess, self.dim = inner.name, inner.preprocess, len(self.columns)

    @classmethod
    def of(cls, inner: ImageModel, names: Sequence[str], ids: Sequence[str]) -> ImageOnly:
        """For a data set's classes, found by id, else by name."""
        for wanted, known in ((ids, inner.ids), (names, inner.classes)):
            place = {k: i for i, k in enumerate(known)}
            if all(w in place for w in wanted):
                return cls(inner, [place[w] for w in wanted])
        missing = next(n for n in names if n not in inner.classes)
        raise InputError(
            f"class {missing!r} is not among the {len(inner.classes)} fixed classes of model "
            f"{inner.name!r}; choose data of its classes, or a vision-language model"
        )

    def weights(self) -> Tensor:
        """Class weights (L, L)."""
        return torch.eye(self.dim)

    def encode_image(self, pixels: Tensor) -> Tensor:
        return self.inner.logits(pixels)[:, self.columns]

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        raise InputError(f"model {self.name!r} has fixed classes and no text tower")
