"""A simulated stream whose class prior is known, to hold estimators against the truth.

Class vectors lie on a sphere. An image is its class vector with noise that its views share; a view
adds noise of its own and shows more or less of the object, as a random crop does. All features lean
towards one common direction, and class vectors lean towards it by how favoured they are, so that
the logits of a class carry log π on top of what the image says: a biased softmax, of known bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from adte.core.options import check, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adte.core.batch import Sample

__all__ = ["SimulatedStream"]


@dataclass(frozen=True, kw_only=True)
class SimulatedStream:
    """A simulated stream of (sample, label) pairs whose class prior is known.

    It serves to compare estimates of the prior with the truth. It can be iterated over as often as
    you like, and is the same each time.

    >>> stream = SimulatedStream(classes=5, images=3, views=4)
    >>> [tuple(sample.logits.shape) for sample, label in stream]
    [(4, 5), (4, 5), (4, 5)]
    """

    classes: int = option(100, "number of classes", low=1)
    images: int = option(1000, "number of images", low=1)
    views: int = option(64, "views per image", low=1)
    dim: int = option(64, "dimension of the features", low=1)
    imbalance: float = option(
        20.0, "prior of the most favoured class over that of the least favoured", low=1
    )
    shared: float = option(1.5, "noise that all views of an image share, for a signal of 1", low=0)
    private: float = option(1.5, "noise that each view has of its own, for a signal of 1", low=0)
    scale: float = option(12.0, "factor that turns cosines into logits", above=0)
    labels: Literal["balanced", "long-tailed", "sorted"] = option(
        "balanced",
        "true labels: each class equally often, in random order (balanced) or class by class "
        "(sorted), or drawn from the prior (long-tailed)",
    )
    seed: int = option(0, "seed of all random draws", low=0)

    def __post_init__(self) -> None:
        check(self, "the simulated stream")

    def _generator(self, *salt: int) -> torch.Generator:
        import torch

        seed = hash((self.seed, *salt)) & 0x7FFF_FFFF_FFFF_FFFF  # integers hash the same everywhere
        return torch.Generator().manual_seed(seed)

    @cached_property
    def prior(self) -> Tensor:
        """The true class prior π (L,), float64: it falls exponentially over shuffled classes."""
        import torch

        rank = torch.randperm(self.classes, generator=self._generator(1)).double()
        pi = self.imbalance ** (-rank / max(self.classes - 1, 1))
        return pi / pi.sum()

    @cached_property
    def class_weights(self) -> Tensor:
        """Unit vectors of the classes (L, D + 1); the last axis is the common direction."""
        import torch
        from torch.nn.functional import normalize

        w = normalize(_normal(self._generator(2), self.classes, self.dim), dim=-1)
        log_pi = self.prior.log()
        lean = ((log_pi - log_pi.mean()) / self.scale).float().clamp(-0.9, 0.9)[:, None]
        return torch.cat([(1 - lean**2).sqrt() * w, lean], dim=-1)

    @cached_property
    def targets(self) -> Tensor:
        """The true label of every image (N,)."""
        import torch

        g = self._generator(3)
        if self.labels == "long-tailed":
            return torch.multinomial(self.prior, self.images, replacement=True, generator=g)
        even = torch.arange(self.images) % self.classes
        if self.labels == "sorted":
            return even.sort().values
        return even[torch.randperm(self.images, generator=g)]

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Sample, int]:
        import torch
        from torch.nn.functional import normalize

        from adte.core.batch import Sample

        if not 0 <= index < self.images:
            raise IndexError(index)
        g, label = self._generator(4, index), int(self.targets[index])
        signal, unit = self.class_weights[label, :-1], self.dim**-0.5
        shown = torch.rand(self.views, 1, generator=g, dtype=torch.float32).sqrt()  # of the object
        shown[0] = 0.8
        image = self.shared * unit * _normal(g, self.dim)
        noise = self.private * unit * _normal(g, self.views, self.dim)
        seen = normalize(shown * signal + image + noise, dim=-1)  # (V, D)
        features = torch.cat([seen, torch.ones(self.views, 1).to(seen)], dim=-1) / 2**0.5
        scale = self.scale * 2**0.5
        logits = scale * features @ self.class_weights.T
        return Sample(logits, features, self.class_weights, scale), label

    def __iter__(self) -> Iterator[tuple[Sample, int]]:
        return (self[i] for i in range(self.images))


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    import torch

    return torch.randn(shape, generator=generator, dtype=torch.float32)
