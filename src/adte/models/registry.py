"""Names for models: load by name, list by pattern, and where to put them.

| name | what it is |
|---|---|
| `tiny` | embedded in the package, no network |
| `ViT-B-16/openai` | an architecture and a tag of open_clip |
| `ViT-B-16` | an architecture of open_clip; needs `weights=` |
| `hf:ID` or `hf:FOLDER` | CLIP, SigLIP or SigLIP2 of transformers |
| `timm:NAME` | an image-only classifier of timm with fixed classes |
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from adte.errors import InputError, MissingExtra, unknown
from adte.models.base import ImageModel, Model

__all__ = ["default_device", "default_dtype", "list_models", "load_model"]

Weights = str | os.PathLike[str] | None

_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")  # instructions on x86 and ARM


def default_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _device(given: torch.device | str) -> torch.device:
    """A device that is there."""
    try:
        place = torch.device(given)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device={str(given)!r} cannot be used here ({str(error).splitlines()[0]}); "
            f"choose {'cuda or ' if torch.cuda.is_available() else ''}cpu"
        ) from error
    return place


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it, else float32."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        kernels = device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        fast = kernels and not _cpu_features().isdisjoint(_BFLOAT16)
    return torch.bfloat16 if fast else torch.float32


def _cpu_features() -> set[str]:
    """The instruction sets of this processor, by the names of Linux; none where unknown."""
    query = getattr(torch.cpu, "get_capabilities", None)  # newer versions of torch
    if query is not None:
        return {k for k, v in query().items() if v is True}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {
        word
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for word in line.partition(":")[2].split()
    }


def load_model(
    name: str,
    *,
    weights: Weights = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    tokenizer: Any = None,
) -> Any:
    """A model by name, ready for inference.

    Args:
        name: see the table at the top of this module; `list_models("ViT*")` finds names.
        weights: a checkpoint file instead of the named weights, or "random" for none.
        device: where it runs; CUDA where there is one, else the CPU.
        dtype: of its weights; bfloat16 where the device computes in it, else float32. `tiny` is
            float32 unless told.
        tokenizer: a folder with the tokenizer's files, for models whose own comes from a hub and
            cannot be had.

    Returns:
        A `Model`, or for `timm:` an `ImageModel`.

    >>> load_model("tiny").dim
    128
    """
    place = default_device() if device is None else _device(device)
    kind = _dtype(dtype) if dtype is not None else default_dtype(place)
    prefix, colon, rest = name.partition(":")
    model: Model | ImageModel
    if name == "tiny":
        if weights is not None or tokenizer is not None:
            raise InputError("'tiny' has its weights and tokenizer embedded; pass neither")
        from adte.models.tiny import load_tiny

        model, kind = load_tiny(), kind if dtype is not None else torch.float32
    elif colon and prefix == "hf":
        from adte.models.huggingface import load_hugging_face

        model = load_hugging_face(rest, weights, tokenizer)
    elif colon and prefix == "timm":
        from adte.models.timm import load_timm

        model = load_timm(rest, weights)
    elif colon:
        raise unknown("kind of model", f"{prefix}:", ("hf:", "timm:"))
    else:
        from adte.models.openclip import load_open_clip

        arch, slash, tag = name.partition("/")
        try:
            model = load_open_clip(arch, tag if slash else None, weights, tokenizer)
        except MissingExtra as error:
            if slash or weights is not None:  # clearly a name of open_clip
                raise
            raise InputError(
                f"unknown model {name!r}; take 'tiny', 'hf:…' or 'timm:…', or install open_clip "
                "for names such as 'ViT-B-16/openai': pip install 'adte[clip]'"
            ) from error
    return model.to(place, kind).eval()


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"dtype={dtype!r} is not a float type; pass 'float32' or 'bfloat16'")
    return found


def list_models(pattern: str = "*") -> list[str]:
    """Names that `load_model` takes and that match a pattern such as "ViT*", case ignored.

    `tiny`, and open_clip's architectures with their tags where it is installed. Names of the hub
    (`hf:…`) and of timm are too many to list.

    >>> list_models("tiny")
    ['tiny']
    """
    names = ["tiny"]
    if pattern != "tiny":
        try:
            from adte.models.openclip import open_clip_names

            names += open_clip_names()
        except MissingExtra:
            pass
    return [n for n in names if fnmatchcase(n.lower(), pattern.lower())]
