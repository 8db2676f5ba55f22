"""The parts of a vision transformer, read from the modules of open_clip, transformers and timm.

The weights are the modules' own tensors; only where a library keeps the products of query, key and
value apart are they joined into one. A tower of another kind is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adte.core.errors import InputError

__all__ = ["Block", "Linear", "Norm", "Unknown", "Vit", "parts", "read"]


class Unknown(InputError):
    """A tower that this package has no forward of its own for."""


class Linear(NamedTuple):
    weight: Tensor  # (O, I)
    bias: Tensor | None  # (O)


class Norm(NamedTuple):
    weight: Tensor  # (W)
    bias: Tensor  # (W)
    eps: float


class Block(NamedTuple):
    """x + out(attention(qkv(norm1 x))), then x + fc2(act(fc1(norm2 x)))."""

    norm1: Norm
    qkv: Linear  # (3 W, W): query, key, value
    out: Linear
    norm2: Norm
    fc1: Linear
    fc2: Linear


class Vit(NamedTuple):
    """A pre-norm vision transformer.

    Attributes:
        first: the class token (W), or None; positions: (T, W), the class token's included.
        act: quick (x·σ(1.702 x)), erf or tanh (GELU and its approximation).
        head: from what `token` says to features (N, D).
        token: whether `head` reads the class token alone (N, W), or all tokens (N, T, W).
    """

    side: int  # of a patch, in pixels
    patch: Linear  # (W, 3 side²)
    first: Tensor | None
    positions: Tensor
    before: Norm | None
    blocks: tuple[Block, ...]
    heads: int
    act: str
    head: Callable[[Tensor], Tensor]
    token: bool


def parts(tower: Any) -> list[nn.Module]:
    """The modules that pixels go through."""
    if not hasattr(tower, "vision_model"):
        return [tower]
    return [tower.vision_model, *filter(None, [getattr(tower, "visual_projection", None)])]


def read(tower: Any) -> Vit:
    """The parts of a tower: open_clip's `visual`, or transformers' model of two towers."""
    inside = (m for part in parts(tower) for m in part.modules())
    _need(not any(m._forward_hooks or m._forward_pre_hooks for m in inside), "it has hooks")
    kind = f"{type(tower).__module__.partition('.')[0]}.{type(tower).__name__}"
    readers: dict[str, Callable[[Any], Vit]] = {
        "open_clip.VisionTransformer": _open_clip,
        "open_clip.TimmModel": _timm,
        "transformers.CLIPModel": _transformers,
        "transformers.SiglipModel": _transformers,
    }
    _need(kind in readers, f"its kind is {kind}")
    try:
        return readers[kind](tower)
    except AttributeError as error:  # another version of the library
        raise Unknown(f"it is built otherwise ({error})") from error


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unknown(otherwise)


def _idle(*modules: Any) -> bool:
    """Whether modules do nothing where no training is."""
    named = (type(m).__name__ for m in modules)
    return all(n in ("Identity", "Dropout", "NoneType", "PatchDropout", "DropPath") for n in named)


def _linear(module: Any) -> Linear:
    return Linear(module.weight, module.bias)


def _norm(module: Any) -> Norm:
    _need(isinstance(module, nn.LayerNorm), f"it normalises by {type(module).__name__}")
    _need(module.weight is not None and module.bias is not None, "a norm has no scale or shift")
    return Norm(module.weight, module.bias, module.eps)


def _before(module: Any) -> Norm | None:
    return None if isinstance(module, nn.Identity) else _norm(module)


def _act(module: Any) -> str:
    name = type(module).__name__
    if name in ("QuickGELU", "QuickGELUActivation"):
        return "quick"
    if name in ("GELUTanh", "GELUTanhPython", "PytorchGELUTanh"):
        return "tanh"
    _need(name in ("GELU", "GELUActivation"), f"its activation is {name}")
    return "tanh" if getattr(module, "approximate", "none") == "tanh" else "erf"


def _same(acts: Iterable[str]) -> str:
    found = set(acts)
    _need(len(found) == 1, "its blocks have several activations, or there are none")
    return found.pop()


def _patch(conv: Any) -> tuple[int, Linear]:
    side = conv.kernel_size[0]
    plain = conv.kernel_size == conv.stride == (side, side) and conv.padding in ((0, 0), "valid")
    _need(plain and conv.in_channels == 3 and conv.groups == 1, "its patches overlap")
    return side, Linear(conv.weight.flatten(1), conv.bias)


def _joined(parts: list[Any]) -> Linear:
    """Several products of one input as one."""
    biases = [p.bias for p in parts]
    _need(all(b is not None for b in biases), "its attention has no biases")
    return Linear(torch.cat([p.weight for p in parts]), torch.cat(biases))


# ---------------------------------------------------------------------- the libraries


def _open_clip(v: Any) -> Vit:
    _need(v.attn_pool is None and v.pool_type in ("tok", "avg"), "it pools by attention")
    _need(_idle(v.patch_dropout), "it drops patches")

    def block(b: Any) -> Block:
        _need(type(b).__name__ == "ResidualAttentionBlock", f"a block is a {type(b).__name__}")
        _need(_idle(b.ls_1, b.ls_2) and not hasattr(b, "ln_1_kv"), "its blocks scale layers")
        a = b.attn
        plain = a.in_proj_weight is not None and a.bias_k is None and not a.add_zero_attn
        _need(plain, "its attention has keys of its own")
        qkv = Linear(a.in_proj_weight, a.in_proj_bias)
        mlp = _linear(b.mlp.c_fc), _linear(b.mlp.c_proj)
        return Block(_norm(b.ln_1), qkv, _linear(a.out_proj), _norm(b.ln_2), *mlp)

    alone = v.pool_type == "tok"

    def head(x: Tensor) -> Tensor:
        pooled: Tensor = v.ln_post(x) if alone else v._pool(x)[0]
        return pooled if v.proj is None else pooled @ v.proj

    blocks = list(v.transformer.resblocks)
    side, patch = _patch(v.conv1)
    return Vit(
        side, patch, v.class_embedding, v.positional_embedding, _before(v.ln_pre),
        tuple(map(block, blocks)), blocks[0].attn.num_heads,
        _same(_act(b.mlp.gelu) for b in blocks), head, alone,
    )  # fmt: skip


def _timm(v: Any) -> Vit:
    """SigLIP in open_clip: timm's transformer without a class token, pooled by attention."""
    t = v.trunk
    _need(type(t).__name__ == "VisionTransformer", f"its trunk is a {type(t).__name__}")
    plain = t.reg_token is None and not t.no_embed_class and not t.dynamic_img_size
    _need(plain and _idle(t.pos_drop, t.patch_drop), "its tokens are of another kind")
    embed = t.patch_embed
    _need(embed.flatten and not embed.dynamic_img_pad and _idle(embed.norm), "it pads its input")

    def block(b: Any) -> Block:
        a, m = b.attn, b.mlp
        _need(type(b).__name__ == "Block", f"a block is a {type(b).__name__}")
        idle = (b.ls1, b.ls2, b.drop_path1, b.drop_path2, a.q_norm, a.k_norm)
        _need(_idle(*idle, getattr(a, "norm", None), getattr(m, "norm", None)), "it scales layers")
        mlp = _linear(m.fc1), _linear(m.fc2)
        return Block(_norm(b.norm1), _linear(a.qkv), _linear(a.proj), _norm(b.norm2), *mlp)

    side, patch = _patch(embed.proj)
    first = None if t.cls_token is None else t.cls_token[0, 0]
    return Vit(
        side, patch, first, t.pos_embed[0], _before(t.norm_pre), tuple(map(block, t.blocks)),
        t.blocks[0].attn.num_heads, _same(_act(b.mlp.act) for b in t.blocks),
        lambda x: v.head(t.forward_head(t.norm(x))), token=False,
    )  # fmt: skip


def _transformers(net: Any) -> Vit:
    """CLIP or SigLIP of transformers, which has no class token and pools by attention."""
    v, e = net.vision_model, net.vision_model.embeddings

    def block(b: Any) -> Block:
        a = b.self_attn
        mlp = _linear(b.mlp.fc1), _linear(b.mlp.fc2)
        qkv = _joined([a.q_proj, a.k_proj, a.v_proj])
        return Block(_norm(b.layer_norm1), qkv, _linear(a.out_proj), _norm(b.layer_norm2), *mlp)

    def head(x: Tensor) -> Tensor:
        pooled: Tensor = v.post_layernorm(x)
        return net.visual_projection(pooled) if clip else v.head(pooled)  # type: ignore[no-any-return]

    clip, layers = type(net).__name__ == "CLIPModel", list(v.encoder.layers)
    side, patch = _patch(e.patch_embedding)
    first, before = (e.class_embedding, _before(v.pre_layrnorm)) if clip else (None, None)
    return Vit(
        side, patch, first, e.position_embedding.weight, before, tuple(map(block, layers)),
        layers[0].self_attn.num_heads, _same(_act(b.mlp.activation_fn) for b in layers), head,
        token=clip,
    )  # fmt: skip
