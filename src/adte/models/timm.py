"""Image-only classifiers of timm, with the classes they were trained on: `load_model("timm:…")`.

They serve the paper's unimodal table. There is no text tower; classes are fixed and told apart by
index, with WordNet ids where they are ImageNet's, so that the 200 classes of ImageNet-A can be
picked from the 1000 by id.

Reference: `huggingface/pytorch-image-models`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adte.core.errors import InputError
from adte.images import Preprocess
from adte.models._torchvision import import_late
from adte.models._weights import (
    RANDOM,
    fetch,
    hub_reachable,
    load_checked,
    not_here,
    read_checkpoint,
)  # fmt: skip
from adte.models.base import ImageClassifier
from adte.models.registry import register_models

__all__ = ["Timm", "load_timm"]


class Timm(ImageClassifier):
    """A classifier of timm; `net` is timm's own module."""

    def __init__(self, net: nn.Module, name: str, facts: dict[str, Any]) -> None:
        channels, height, width = facts["input_size"]
        if channels != 3 or height != width:
            raise InputError(
                f"{name!r} takes input of {channels} × {height} × {width}; "
                "choose a model with square RGB input"
            )
        preprocess = Preprocess(
            size=int(height),
            mean=tuple(facts["mean"]),
            std=tuple(facts["std"]),
            interpolation="bilinear" if facts["interpolation"] == "bilinear" else "bicubic",
            resize="squash" if facts["crop_mode"] == "squash" else "shortest",
            crop=float(facts["crop_pct"]),
        )
        ids, classes = _labels(int(net.num_classes))  # type: ignore[arg-type]
        super().__init__(net, name, classes, ids, preprocess)


def _labels(count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids and names by label: ImageNet's where there are a thousand."""
    from adte.data.names import imagenet_classes

    table = imagenet_classes()
    if count == len(table):
        return tuple(i for i, _ in table), tuple(n for _, n in table)
    plain = tuple(map(str, range(count)))
    return plain, plain


@register_models("timm:")
def load_timm(
    name: str, weights: str | os.PathLike[str] | None = None, tokenizer: Any = None
) -> Timm:
    """A classifier by timm's name, in float32 on the CPU.

    Args:
        name: such as "resnext101_32x8d.fb_wsl_ig1b_ft_in1k"; without the part behind the dot the
            default weights of the architecture are taken.
        weights: a checkpoint file to use instead, or "random".
        tokenizer: refused; there is no text tower.
    """
    if tokenizer is not None:
        raise InputError(f"'timm:{name}' has no text tower to need a tokenizer; leave it out")
    timm = import_late("timm", "timm", "timm", "an image-only classifier")
    facts = _facts(name, timm)
    source = str(weights) if weights is not None else _fetch(name, facts)
    if source == RANDOM:
        net = timm.create_model(name, pretrained=False)
    else:
        net = _from_file(name, source, timm)
    return Timm(net, f"timm:{name}", timm.data.resolve_data_config(pretrained_cfg=facts))


def _facts(name: str, timm: Any) -> dict[str, Any]:
    if not timm.is_model(name):
        from difflib import get_close_matches

        close = get_close_matches(name, timm.list_models(), 1)
        hint = f" (did you mean 'timm:{close[0]}'?)" if close else ""
        raise InputError(f"unknown timm model {name!r}{hint}; timm.list_models() lists them")
    try:
        found = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        arch = name.partition(".")[0]
        tags = [m.partition(".")[2] for m in timm.list_pretrained(f"{arch}.*")]
        raise InputError(
            f"timm knows no weights {name.partition('.')[2]!r} of {arch!r}; "
            f"choose one of: {', '.join(tags)}"
        ) from error
    return dict(found.to_dict()) if found else {}


def _fetch(name: str, facts: dict[str, Any]) -> str:
    """The checkpoint on disk, downloaded if need be."""
    repo, url = facts.get("hf_hub_id") or "", facts.get("url") or ""
    if not repo and not url:
        raise InputError(f"timm has no weights for {name!r}; pass weights=FILE or weights='random'")
    if repo and (path := fetch(repo, ("model.safetensors", "pytorch_model.bin"))):
        return path
    cached = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
    if url and cached.is_file():
        return str(cached)
    if url and hub_reachable(url):
        cached.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(cached), progress=False)
        return str(cached)
    wanted = f"model.safetensors of the hub repository {repo!r}" if repo else url
    raise not_here(f"timm:{name}", wanted)


def _from_file(name: str, source: str, timm: Any) -> nn.Module:
    if source.endswith(".npz"):  # arrays, which timm reads without their pickles
        overlay: dict[str, Any] = {"file": source, "custom_load": True}
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)  # type: ignore[no-any-return]
    net = timm.create_model(name, pretrained=False)
    state = read_checkpoint(source)
    head = state.get(f"{net.pretrained_cfg.get('classifier')}.weight")
    if head is not None and len(head) != net.num_classes:  # a head of the user's own
        net = timm.create_model(name, pretrained=False, num_classes=len(head))
    mine = net.state_dict()
    if not set(state) & set(mine):  # an older layout that timm knows how to read
        with suppress(Exception):  # or does not: the check will name what differs
            overlay = {"state_dict": state, "hf_hub_id": None, "url": ""}
            return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)  # type: ignore[no-any-return]
    load_checked(net, state, repr(source))
    return net  # type: ignore[no-any-return]
