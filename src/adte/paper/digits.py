"""Small labs with pixels: scikit-learn's 1,797 handwritten digits (8×8, UCI), not MNIST.

No photographs ship with the package, so studies that must see pixels make their own world: digits
out of scikit-learn, and a convolutional network with batch norm that is trained on the spot in
seconds. Everything follows from the seed.

  coloured   two classes, colour a false friend, as DeYO builds ColoredMNIST (Lee et al. 2024)
  corrupted  ten classes, learned from a long-tailed set, tested under common corruptions
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate

from adte.core.errors import MissingExtra
from adte.data import Dataset, make_stream
from adte.data.colored_mnist import ColoredMNIST
from adte.data.corruptions import Corruption
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import FeatureStream, Held, part
from adte.images import Preprocess, Views
from adte.methods.image_tower import Descent
from adte.models.base import FixedClasses

__all__ = ["Coloured", "DigitNet", "coloured", "corrupted", "load_digits"]

Ints = NDArray[np.int64]

SOURCE = "scikit-learn's digits (8×8, UCI), not MNIST"
COPIES = 4  # of each test digit in the coloured lab
KINDS = ("gaussian_noise", "impulse_noise", "defocus_blur", "motion_blur")  # of the corrupted lab
SEVERITY = 5
LEAST, MOST = 6, 60  # training images of the rarest and of the most frequent digit
PREPROCESS = Preprocess(size=16, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear")
VIEWS = Views(count=64, scale=(0.4, 1.0), flip=0.0)  # a mirrored digit is another sign


def load_digits() -> tuple[NDArray[np.uint8], Ints]:
    """Grey levels (1797, 8, 8), and which digit each is (1797,)."""
    try:
        bunch: Any = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise MissingExtra("scikit-learn", "studies", "a study on handwritten digits") from error
    return np.round(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)


class DigitNet(FixedClasses):
    """Four 3×3 convolutions with batch norm, halving the image twice, and a linear head."""

    def __init__(
        self, name: str, classes: tuple[str, ...], width: int, strides: tuple[int, ...], seed: int
    ) -> None:
        super().__init__(name, classes, tuple(map(str, range(len(classes)))), PREPROCESS)
        layers: list[nn.Module] = []
        wide = [3, width, 2 * width, 2 * width, 4 * width]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for a, b, stride in zip(wide[:-1], wide[1:], strides, strict=True):
                conv = nn.Conv2d(a, b, 3, stride, 1, bias=False)
                layers += [conv, nn.BatchNorm2d(b), nn.ReLU()]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(wide[-1], len(classes))

    def classify(self, pixels: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(pixels).mean((2, 3)))
        return z

    def fit(self, x: Tensor, y: Tensor, steps: int, seed: int, crops: bool = False) -> DigitNet:
        """Cross-entropy by Adam in batches of 64; with `crops`, on random crops of the images."""
        draw = torch.Generator().manual_seed(seed)
        named, descent = dict(self.named_parameters()), Descent("adam", 3e-3)
        moments = descent.start({n: p.detach() for n, p in named.items()})
        self.train()
        for t in range(1, steps + 1):
            rows = torch.randint(len(x), (64,), generator=draw)
            batch = _cropped(x[rows], draw) if crops else x[rows]
            loss = cross_entropy(self.classify(batch), y[rows])
            slope = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
            with torch.no_grad():
                new, moments = descent.step({**named}, slope, moments, t)
                for n, p in named.items():
                    p.copy_(new[n])
        return self.eval()


def _cropped(x: Tensor, draw: torch.Generator) -> Tensor:
    """A crop of √0.4 to 1 of the side from each image, at its full size.  (N, 3, S, S)"""
    side = VIEWS.scale[0] ** 0.5
    zoom = side + (1 - side) * torch.rand(len(x), generator=draw)
    shift = (1 - zoom)[:, None] * (2 * torch.rand(len(x), 2, generator=draw) - 1)
    theta = torch.cat([torch.diag_embed(zoom[:, None].expand(-1, 2)), shift[..., None]], -1)
    grid = affine_grid(theta, list(x.shape), align_corners=False)  # (N, S, S, 2)
    return grid_sample(x, grid, padding_mode="border", align_corners=False)


# --------------------------------------------------------------------------- colour


@dataclass(frozen=True, eq=False)
class Coloured:
    """A network that learned colour with shape, and digits on which colour tells the opposite."""

    net: DigitNet
    pixels: Tensor  # (N, 3, H, W) in [−1, 1]
    labels: Ints  # (N,) 0 to 4, or 5 to 9
    groups: Ints  # (N,) 2·label + [red]


def coloured(
    seed: int,
    images: int | None = None,
    steps: int = 300,
    given: tuple[NDArray[np.uint8], Ints] | None = None,
) -> Coloured:
    """ColoredMNIST's recipe on these digits; those of the test four times, moved by up to a pixel.

    In training colour tells the noisy label in 85 % of the images and shape in 75 %, so the best
    guess goes by colour alone; a network that also memorises, as DeYO's does, uses shape too. In
    the test colour tells the opposite. No digit is in two environments. `given` are other images
    (N, H, W) and their digits (N,), such as MNIST's.
    """
    grey, digits = given or load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(grey))
    grey, digits = grey[order], digits[order]

    def environment(part: Any, copies: int = 1) -> tuple[Tensor, Ints, Ints]:
        moved = _moved(grey.repeat(copies, 0), rng) if copies > 1 else grey
        data = ColoredMNIST(part=part, seed=seed).build(moved, digits.repeat(copies))
        levels = np.stack([data.sources[i] for i in range(len(data))])
        assert data.groups is not None
        pixels = torch.from_numpy(levels).permute(0, 3, 1, 2).float() / 127.5 - 1
        return pixels, data.labels, data.groups

    seen = [environment(part) for part in ("train1", "train2")]
    x, y = torch.cat([e[0] for e in seen]), np.concatenate([e[1] for e in seen])
    net = DigitNet("coloured digits", ("zero to four", "five to nine"), 16, (1, 2, 1, 2), seed)
    net.fit(x, torch.from_numpy(y), steps, seed)
    pixels, labels, groups = environment("test", COPIES)
    stream = rng.permutation(len(labels))[:images]
    return Coloured(net, pixels[torch.from_numpy(stream)], labels[stream], groups[stream])


def _moved(grey: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each image shifted by −1, 0 or 1 pixel either way.  (N, H, W)"""
    h, w = grey.shape[1:]
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)))
    places = rng.integers(0, 3, (len(grey), 2)).tolist()
    return np.stack([p[a : a + h, b : b + w] for p, (a, b) in zip(padded, places, strict=True)])


# --------------------------------------------------------------------------- corruption


def corrupted(
    seed: int, width: int, images: int = 80, steps: int = 250, views: int = 64
) -> FeatureStream:
    """Corrupted digits as a stream, with the pixels of their views.

    The digits, enlarged to 32 × 32, are split in two. The network of that width learns from a half,
    thinned to 60 of the most frequent class down to 6 of the rarest, exponentially; which is
    which, the seed says. The stream has each of four corruptions equally often.
    """
    grey, digits = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(grey))
    small = torch.from_numpy(grey[order])[:, None].float()  # (N, 1, 8, 8)
    levels = interpolate(small, size=32, mode="bilinear").expand(-1, 3, -1, -1)  # (N, 3, 32, 32)
    digits, half = digits[order], len(grey) // 2

    share = (LEAST / MOST) ** (np.arange(10) / 9)
    counts = np.rint(MOST * share).astype(int)[rng.permutation(10)]  # (10,)
    rows = np.concatenate([np.flatnonzero(digits[:half] == c)[:n] for c, n in enumerate(counts)])
    x = PREPROCESS.normalise(interpolate(levels[rows].contiguous(), scale_factor=0.5, mode="area"))
    net = DigitNet(f"digits, width {width}", tuple("0123456789"), width, (2, 1, 2, 1), seed)
    net.fit(x, torch.from_numpy(digits[rows]), steps, seed, crops=True)

    tested = slice(half, half + images)
    clean = levels[tested].permute(0, 2, 3, 1).round().byte().numpy()  # (N, 32, 32, 3)
    kinds = [Corruption(KINDS[i % len(KINDS)], SEVERITY, seed) for i in range(images)]
    data = Dataset(
        name="digits",
        classes=net.classes,
        class_ids=net.ids,
        sources=[kinds[i](clean[i], key=half + i) for i in range(images)],
        labels=digits[tested],
        ids=[str(n) for n in order[tested]],
        split=f"{SOURCE}, split with seed {seed}, noise and blur of severity {SEVERITY}",
        domains=[f"{kind.name}/{SEVERITY}" for kind in kinds],
    )
    crops = replace(VIEWS, count=views, seed=seed)
    stream = make_stream(data, order="listed")  # one corruption after the other
    live = Live(net, net.class_weights(), stream, crops, keep_pixels=True)
    live.recipe = replace(live.recipe, frequency=tuple(counts.tolist()))
    in_turn = np.argsort(stream.places[:, 1])
    return part(Held.of(live), in_turn, "corruptions in turn")
