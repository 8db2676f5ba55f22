"""`tiny` and `tiny-longtail`: the small vision-language models that ship with the package.

Image and text towers meet on one unit sphere of 128 dimensions.

- `ImageTower` reads 64×64 pixels. It is a small convolutional network, dense 3×3 where the image
  is large and depthwise 5×5 where it is small, shaped for a CPU: 64 views take about a fifth of a
  second on two cores.
- `TextTower` reads any English phrase. It is a four-layer transformer over word pieces, taught to
  reproduce the sentence embeddings of a larger encoder. Both models share it.

`tiny` is for tests: its image tower learned from all the public images that could be had.
`tiny-longtail` is for evidence: the number of its training images per class was chosen and recorded
(`tiny_classes`). `recipes/tiny/` trains them; `assets/TINY.md` is their card.

Example:
    >>> model = load_tiny()
    >>> model.encode_text(["a cat", "a truck"]).shape
    torch.Size([2, 128])
"""

from __future__ import annotations

import copy
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from adte.core.errors import StateError
from adte.images import Preprocess
from adte.models.base import Model
from adte.models.registry import register_model

DIM = 128
SIZE = 64
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

PAD, START = 0, 1  # the first two lines of the vocabulary
_WORDS = re.compile(r"[a-z0-9]+|\S")


class Tokenizer:
    """Word pieces by greedy longest match, lower case, accents dropped.

    `vocab` is a list of pieces. A piece that continues a word starts with "##". Every letter and
    digit is a piece in both forms and every byte is a piece "<0xHH>", so no text is unknown.
    """

    def __init__(self, vocab: Iterable[str], context: int = 64) -> None:
        self.vocab = list(vocab)
        self.context = context
        self.index = {piece: i for i, piece in enumerate(self.vocab)}
        self.longest = max(map(len, self.vocab))
        self._word = lru_cache(maxsize=65536)(self._split)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.vocab, self.context)  # what was looked up stays here

    def _split(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self.longest), start, -1):
                i = self.index.get(prefix + word[start:end])
                if i is not None:
                    ids.append(i)
                    start = end
                    break
            else:  # no piece holds this character: spell its bytes
                ids += [self.index[f"<0x{b:02X}>"] for b in word[start].encode()]
                start += 1
        return tuple(ids)

    def encode(self, text: str) -> list[int]:
        """The start token, then the pieces of `text`, cut at `context` tokens."""
        # a token spells at most `longest` characters, so what lies beyond cannot be read
        text = unicodedata.normalize("NFKD", text[: self.context * self.longest].lower())
        text = "".join(c for c in text if not unicodedata.combining(c))
        text = text.encode("utf-8", "replace").decode()  # lone surrogates have no bytes
        ids = [START]
        for word in _WORDS.findall(text):
            ids += self._word(word) if len(word) < 40 else self._split(word)
        return ids[: self.context]

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids (N, T), padded with `PAD`, and lengths (N,)."""
        rows = [self.encode(text) for text in texts]
        width = max(map(len, rows), default=1)
        padded = [r + [PAD] * (width - len(r)) for r in rows]
        ids = torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)
        return ids, torch.tensor([len(r) for r in rows], dtype=torch.long)


class _Gelu(torch.autograd.Function):
    """x·Φ(x), with its slope Φ(x) + x·φ(x) in a few passes: torch's own is slow on some CPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        density = (x.square() * -0.5).exp() * (2 * math.pi) ** -0.5
        return grad * (x * density + (x * 0.5**0.5).erf() * 0.5 + 0.5)  # type: ignore[no-any-return]


class Gelu(nn.GELU):
    """GELU; the same numbers as torch's, a faster way back."""

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return F.gelu(x)
        y: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return y


class Attention(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        n, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (N, heads, T, w / heads) each
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, w))
        z: Tensor = self.mlp(self.norm2(x))
        return x + z


class TextTower(nn.Module):
    """Token ids to unit vectors, in two steps so that prompts can be tuned between them."""

    def __init__(
        self,
        vocab: int,
        width: int = 192,
        depth: int = 4,
        heads: int = 6,
        context: int = 64,
        dim: int = DIM,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, dim)

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings (N, T, w), without positions."""
        x: Tensor = self.tokens(ids)
        return x

    def forward_embedded(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Unit vectors (N, D) of embeddings (N, T, w); what is beyond `lengths` is padding."""
        lengths = lengths.to(x.device)
        least, most = (int(n) for n in lengths.aminmax()) if len(lengths) else (0, 0)
        x = x[:, :most] + self.positions[:most]  # padding behind the longest text costs nothing
        real = torch.arange(most, device=x.device) < lengths[:, None]  # (N, T)
        mask = None if least == most else real[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x) * real[..., None]
        return F.normalize(self.project(x.sum(1) / lengths[:, None]), dim=-1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.forward_embedded(self.embed(ids), lengths)


class Block(nn.Module):
    """Depthwise 5×5, then two pointwise layers, around a shortcut."""

    def __init__(self, width: int, expand: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 5, padding=2, groups=width, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.up = nn.Conv2d(width, expand * width, 1)
        self.down = nn.Conv2d(expand * width, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.up(self.norm1(self.spatial(x))), inplace=True)
        z: Tensor = self.norm2(self.down(y))
        return x + z


class Dense(nn.Module):
    """A dense 3×3, then a pointwise layer, around a shortcut; for few channels and many pixels."""

    def __init__(self, width: int, expand: int) -> None:
        super().__init__()
        self.up = nn.Conv2d(width, expand * width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(expand * width)
        self.down = nn.Conv2d(expand * width, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.norm2(self.down(F.relu(self.norm1(self.up(x)), inplace=True)))
        return x + z


def _conv(i: int, o: int, kernel: int, stride: int) -> list[nn.Module]:
    padding = kernel // 2 if kernel > stride else 0
    return [nn.Conv2d(i, o, kernel, stride, padding, bias=False), nn.BatchNorm2d(o)]


# Stages of the two image towers, at 32², 16², 8² and 4² pixels.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"widths": (32, 72, 160, 320), "depths": (1, 3, 6, 3), "expand": (2, 2, 4, 3)},
    "tiny-longtail": {"widths": (32, 64, 128, 256), "depths": (1, 2, 4, 2), "expand": (2, 2, 3, 3)},
}


class ImageTower(nn.Module):
    """Normalised pixels (N, 3, 64, 64) to unit vectors (N, D)."""

    def __init__(
        self, widths: Sequence[int], depths: Sequence[int], expand: Sequence[int], head: int = 768
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        last = 3
        for k, (width, depth, wide) in enumerate(zip(widths, depths, expand, strict=True)):
            layers += _conv(last, width, 3 if k < 2 else 2, 2)
            layers += [nn.ReLU(inplace=True)] if not k else []
            layers += [(Dense if k < 2 else Block)(width, wide) for _ in range(depth)]
            last = width
        layers += [*_conv(last, head, 1, 1), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers)
        self.project = nn.Linear(head, DIM)

    def forward(self, x: Tensor) -> Tensor:
        # depthwise layers are three times faster with channels last
        x = self.body(x.contiguous(memory_format=torch.channels_last))
        return F.normalize(self.project(x.mean((2, 3))), dim=-1)

    def fold(self) -> ImageTower:
        """A copy for inference with every batch norm folded into the convolution before it."""
        tower = copy.deepcopy(self).eval()
        for module in tower.modules():
            last: tuple[str, nn.Conv2d] | None = None
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d) and last:
                    setattr(module, last[0], fuse_conv_bn_eval(last[1], child))
                    setattr(module, name, nn.Identity())
                last = (name, child) if isinstance(child, nn.Conv2d) else None
        tower.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return tower


class Embedded(Model):
    """A model of the package: the one text tower, under an image tower that its class adds."""

    dim = DIM

    def __init__(self, vocab: Sequence[str], logit_scale: float) -> None:
        super().__init__()
        self.logit_scale = logit_scale
        self.tokenizer = Tokenizer(vocab)
        self.text_tower = TextTower(len(self.tokenizer.vocab))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self.encode_embeddings(*self.token_embeddings(texts))

    def token_embeddings(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids = self.tokenizer(texts)[0].to(self.text_tower.positions.device)
        return ids, self.text_tower.embed(ids)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        return self.text_tower.forward_embedded(embeddings, ids.ne(PAD).sum(1))


class Tiny(Embedded):
    """An embedded model. Gradients flow through both towers; callers turn them off."""

    def __init__(self, vocab: Sequence[str], name: str = "tiny", logit_scale: float = 20.0) -> None:
        super().__init__(vocab, logit_scale)
        self.name = name
        # Training crops show things larger than whole images do; the usual 7/8 evens that out.
        self.preprocess = Preprocess(SIZE, MEAN, STD, interpolation="bicubic", crop=0.875)
        self.image_tower = ImageTower(**SHAPES[name])

    def encode_image(self, pixels: Tensor) -> Tensor:
        z: Tensor = self.image_tower(pixels)
        return z

    def fold(self) -> Tiny:
        """A copy for inference whose image tower has no batch norm left. Same output, faster."""
        model = copy.copy(self)
        model._modules = dict(self._modules)
        model.image_tower = self.image_tower.fold()
        return model


def tiny_classes() -> list[dict[str, object]]:
    """`tiny-longtail`'s 200 training classes by wnid: `wnid`, `name` and `count` of images."""
    text = resources.files("adte").joinpath("assets/tiny-classes.json").read_text("utf-8")
    rows: list[dict[str, object]] = json.loads(text)
    return rows


def _load(name: str) -> Tiny:
    """The shipped weights of either, in float32 and ready for inference."""
    assets = resources.files("adte").joinpath("assets")
    vocab = assets.joinpath("tiny-vocab.txt").read_text("utf-8").splitlines()
    state = load(assets.joinpath("tiny.safetensors").read_bytes())
    if name != "tiny":  # its own image tower and scale, the same text tower
        state = {k: v for k, v in state.items() if k.startswith("text_tower.")}
        state |= load(assets.joinpath(f"{name}.safetensors").read_bytes())
    model = Tiny(vocab, name, logit_scale=float(state.pop("logit_scale")))
    for key, wanted in model.state_dict().items():
        found = state.get(key)
        if found is None or found.shape != wanted.shape:
            shape = None if found is None else tuple(found.shape)
            raise StateError(
                f"{name}.safetensors: {key} is {shape}, not {tuple(wanted.shape)}; reinstall adte"
            )
    model.load_state_dict(state)  # float16 on disk, float32 from here on
    return model.eval()


@register_model("tiny", dtype=torch.float32)
def load_tiny() -> Tiny:
    """The small model of all the public images: quick, for tests."""
    return _load("tiny")


@register_model("tiny-longtail", dtype=torch.float32)
def load_longtail() -> Tiny:
    """The model of known class counts, for studies of bias."""
    return _load("tiny-longtail")
