"""The image tower's forward written for speed, with the library's own weights; inference only.

It is what open_clip's and transformers' vision transformers compute, in fewer passes over memory:

- Patches are cut by a reshape and embedded by one product; tokens lie images first throughout.
- Query, key and value are one product, and go to `scaled_dot_product_attention` without a copy.
- x + W h is one product that adds into x. Its bias b stays out: the blocks carry x − Σ b of the
  products so far, and each layer norm adds that sum, a vector known beforehand, as it reads x.
- Where the class token alone is read, the last block computes nothing for the others beyond their
  keys and values. That is 5/6 of a block: 7 % of ViT-B, 3.5 % of ViT-L.
- Layer norm and QuickGELU are one Triton kernel each on CUDA; GELU is a part of its product there.

`accelerate(model)` gives the same model with this forward for `encode_image`. Where gradients are
on, in training, at another image size and in copies for methods that change the tower (Tent, MEMO),
the library's own forward runs as before.

float8: the two products of each MLP, with the rows of both factors scaled to e4m3.
`benchmarks/tower.py` measures the cosine with the library's forward, and the time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adte.core.errors import InputError
from adte.models._fused import activated, layer_norm, rows8
from adte.models._vit import Block, Linear, Unknown, Vit, parts, read
from adte.models.base import Model

__all__ = ["FastTower", "accelerate"]

COSINE = {False: 0.9995, True: 0.99}  # with the library's own forward, at least; by float8


def accelerate(model: Model, compile: bool | str = False, float8: bool = False) -> Model:
    """Give a model faster code for its image tower, used where gradients are off.

    Args:
        model: a model of open_clip or transformers, with a vision transformer as in CLIP and
            SigLIP.
        compile: use torch.compile: True, or one of its modes. The first call takes a minute. Only
            the first shape that comes is compiled; others run uncompiled.
        float8: compute the products of the MLPs in float8. It needs CUDA of compute capability 8.9
            or more, and a model in bfloat16.

    Returns:
        The same model with shared weights.

    Raises:
        InputError: if the tower is not known, or its features would differ.
    """
    tower = model._visual
    if tower is None:
        raise InputError(
            f"model {model.name!r} has no tower that a faster forward is known for; use it as it "
            "is, with runtime='torch'"
        )
    if float8:
        _check_float8(model)
    try:
        fast = FastTower(tower, float8, compile)
    except InputError as error:
        raise InputError(
            f"the image tower of {model.name!r} has no faster forward here: {error}; use it as it "
            "is, with runtime='torch'"
        ) from error
    new = copy.copy(model)
    new.runner = fast
    return _checked(new, model, COSINE[float8])


def _check_float8(model: Model) -> None:
    place, kind = model.device, model.dtype
    if place.type != "cuda" or torch.cuda.get_device_capability(place) < (8, 9):
        raise InputError(
            f"float8 products need CUDA of compute capability 8.9 or more, and the model is on "
            f"{place}; choose runtime='fast'"
        )
    if kind != torch.bfloat16:
        raise InputError(f"float8 goes with bfloat16, and the model is {kind}; pass dtype=bfloat16")


@torch.no_grad()
def _checked(new: Model, model: Model, least: float) -> Model:
    """Both forwards on four images of noise: a library may have changed behind its names."""
    side = model.preprocess.size
    pixels = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(0))
    pixels = pixels.to(model.device, model.dtype)
    own, fast = model.encode_image(pixels), new.encode_image(pixels)
    cosine = float(F.cosine_similarity(own, fast).min())
    if not cosine >= least:
        raise InputError(
            f"the faster forward of {model.name!r} differs from the library's (cosine "
            f"{cosine:.5f}, below {least}); use it as it is, with runtime='torch'"
        )
    return new


class _Packed(NamedTuple):
    """A tower with what follows from its weights."""

    vit: Vit
    shifts: list[tuple[Tensor, Tensor]]  # Σ b before each block's norms
    last: Tensor  # Σ b behind the last block
    eight: list[tuple[_Eight, _Eight]]  # fc1 and fc2 of each block in float8, or nothing


class _Eight(NamedTuple):
    weight: Tensor  # (O, I) e4m3
    scale: Tensor  # (1, O)


@dataclass(eq=False)
class FastTower:
    """Pixels (N, 3, S, S) to what the library's tower gives (N, D).

    The weights are read again when they were moved, cast, changed or replaced, alone or with the
    module that holds them.
    """

    tower: Any
    float8: bool = False
    compile: bool | str = False
    name = "fast"

    def __post_init__(self) -> None:
        self._find()
        self._stamp: tuple[Any, ...] = ()
        self._packed: _Packed | None = None
        self._compiled: Any = None
        self._shape: tuple[int, ...] | None = None
        self._pack()

    def _find(self) -> None:
        """The modules and where each has its parameters and parts: asked again, that is cheap."""
        inside = [m for part in parts(self.tower) for m in part.modules()]
        self._places = [(m._parameters, n) for m in inside for n in m._parameters]
        self._inside = [(m._modules, tuple(m._modules.values())) for m in (self.tower, *inside)]

    def __getstate__(self) -> dict[str, Any]:
        return {"tower": self.tower, "float8": self.float8, "compile": self.compile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def takes(self, tower: Any, pixels: Tensor) -> bool:
        """Whether it can stand for this tower on these pixels: no copy, no other size."""
        if tower is not self.tower or tower.training or torch.is_grad_enabled():
            return False
        try:
            vit = self._pack().vit
        except Unknown:  # by a part that was put in since
            return False
        rows, rest = divmod(pixels.shape[-1], vit.side)
        tokens = rows * rows + (vit.first is not None)
        square = pixels.shape[-1] == pixels.shape[-2] and not rest
        return square and tokens == len(vit.positions) and pixels.dtype == vit.patch.weight.dtype

    def __call__(self, pixels: Tensor) -> Tensor:
        packed = self._pack()
        if not self.compile or len(pixels) < 8:
            return _forward(packed, pixels)
        if self._shape is None:
            mode = None if self.compile is True else self.compile
            self._shape = tuple(pixels.shape)
            self._compiled = torch.compile(_forward, mode=mode, dynamic=False)
        same = tuple(pixels.shape) == self._shape
        return (self._compiled if same else _forward)(packed, pixels)

    @torch.no_grad()
    def _pack(self) -> _Packed:
        if any(tuple(held.values()) != those for held, those in self._inside):
            self._find()
        now = [held.get(name) for held, name in self._places]
        stamp = tuple((p.data_ptr(), _version(p), p.dtype) for p in now if p is not None)
        if self._packed is None or stamp != self._stamp:
            vit = read(self.tower)
            total = torch.zeros_like(vit.positions[0], dtype=torch.float32)
            shifts = []
            for block in vit.blocks:
                first, total = total, _plus(total, block.out.bias)
                shifts.append((first, total))
                total = _plus(total, block.fc2.bias)
            eight = [(_to8(b.fc1), _to8(b.fc2)) for b in vit.blocks] if self.float8 else []
            self._packed, self._stamp = _Packed(vit, shifts, total, eight), stamp
            self._shape = None
        return self._packed


def _version(p: Tensor) -> int:
    return 0 if p.is_inference() else p._version


def _plus(total: Tensor, bias: Tensor | None) -> Tensor:
    return total if bias is None else total + bias.float()


def _to8(linear: Linear) -> _Eight:
    weight, scale = rows8(linear.weight.detach())
    return _Eight(weight, scale.T.contiguous())


# ---------------------------------------------------------------------- the forward


def _forward(packed: _Packed, pixels: Tensor) -> Tensor:
    vit = packed.vit
    x = _embed(vit, pixels)  # (N, T, W)
    for i, block in enumerate(vit.blocks):
        eight = packed.eight[i] if packed.eight else None
        alone = vit.token and i == len(vit.blocks) - 1
        x = _block(x, block, packed.shifts[i], vit, eight, alone)
    x = x + packed.last.to(x.dtype)
    return vit.head(x[:, 0] if vit.token else x)


def _embed(vit: Vit, pixels: Tensor) -> Tensor:
    """Pixels (N, 3, S, S) to tokens (N, T, W), with their positions."""
    n, side = len(pixels), vit.side
    rows = pixels.shape[-1] // side
    x = pixels.reshape(n, 3, rows, side, rows, side).permute(0, 2, 4, 1, 3, 5)
    x = F.linear(x.reshape(n, rows * rows, 3 * side * side), *vit.patch)
    if vit.first is None:
        x = x + vit.positions
    else:
        tokens = x.new_empty(n, 1 + rows * rows, x.shape[-1])
        tokens[:, 0] = vit.first + vit.positions[0]
        tokens[:, 1:] = x + vit.positions[1:]
        x = tokens
    return x if vit.before is None else layer_norm(x, None, *vit.before)


def _block(
    x: Tensor,
    block: Block,
    shifts: tuple[Tensor, Tensor],
    vit: Vit,
    eight: tuple[_Eight, _Eight] | None,
    alone: bool,
) -> Tensor:
    """One block, in place; `alone`: of the first token only.  (N, T, W) → (N, T or 1, W)"""
    n, t, w = x.shape
    h = layer_norm(x, shifts[0], *block.norm1)
    if alone:
        some = Linear(*(None if p is None else p[:w] for p in block.qkv))  # type: ignore[arg-type]
        rest = Linear(*(None if p is None else p[w:] for p in block.qkv))  # type: ignore[arg-type]
        q = F.linear(h[:, :1], *some).view(n, 1, vit.heads, -1).transpose(1, 2)
        k, v = F.linear(h, *rest).view(n, t, 2, vit.heads, -1).permute(2, 0, 3, 1, 4)
        x, t = x[:, :1].contiguous(), 1
    else:
        q, k, v = F.linear(h, *block.qkv).view(n, t, 3, vit.heads, -1).permute(2, 0, 3, 1, 4)
    h = F.scaled_dot_product_attention(q, k, v)  # (N, heads, T, W / heads)
    del q, k, v
    flat = x.view(n * t, w)
    flat = flat.addmm_(h.transpose(1, 2).reshape(n * t, w), block.out.weight.T)
    h = layer_norm(flat, shifts[1], *block.norm2)
    if eight is None:
        h = activated(h, *block.fc1, vit.act)
        flat = flat.addmm_(h, block.fc2.weight.T)
    else:
        h = _product8(*rows8(h), eight[0], block.fc1.bias)
        flat = flat.add_(_product8(*rows8(h, vit.act), eight[1], None))
    return flat.view(n, t, w)


def _product8(x: Tensor, scale: Tensor, weight: _Eight, bias: Tensor | None) -> Tensor:
    """(M, I) and (O, I) in float8 → (M, O) bfloat16"""
    return torch._scaled_mm(
        x, weight.weight.T, scale_a=scale, scale_b=weight.scale, bias=bias,
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
