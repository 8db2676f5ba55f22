"""Models of open_clip: every architecture and tag it knows, from its hub or from a local file.

`load_open_clip("ViT-B-16", "openai")` gives CLIP as published: QuickGELU where the tag or the
architecture says so, the tag's own preprocessing, its tokenizer, logit scale and bias.

SigLIP was trained with a sigmoid for each pair of image and text. Here its logits, scale · cosine +
bias, go through a softmax over the classes, as in the paper, for one label is wanted of each image.
The bias is the same for every class, so the softmax does not see it.

Reference: `mlfoundations/open_clip`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adte.core.errors import InputError, UnknownModel, unknown
from adte.images import Preprocess
from adte.models._torchvision import import_late
from adte.models._towers import TwoTowers, has_words, unit
from adte.models._weights import (
    RANDOM,
    fetch,
    hub_reachable,
    load_checked,
    local_first,
    not_here,
    read_checkpoint,
)
from adte.models.registry import registered

__all__ = [
    "CACHE", "OpenClip", "import_open_clip", "load_open_clip", "open_clip_names", "published",
    "read_preprocess",
]  # fmt: skip

CACHE = "~/.cache/clip"  # open_clip's own, of what lies at an address; see `Published.places`
Tokenizer = Callable[[list[str]], Tensor]


def import_open_clip() -> Any:
    """The package open_clip, or the sentence that says how to install it."""
    return import_late("open_clip", "open_clip_torch", "clip", "an open_clip model")


def open_clip_names() -> list[str]:
    """Every "architecture/tag" that open_clip can load."""
    return [f"{arch}/{tag}" for arch, tag in _listing().list_pretrained()]


def _listing() -> Any:
    """The module of open_clip that knows its tags, without its networks, which take long to import.

    Its package is imported first by rule. So it is taken from one of another name, with its place.
    """
    if "open_clip" in sys.modules or (spec := find_spec("open_clip")) is None:
        return import_open_clip()
    package = ModuleType("_open_clip_listing")
    package.__path__ = spec.submodule_search_locations or []
    sys.modules[package.__name__] = package
    try:
        return import_module(f"{package.__name__}.pretrained")
    except ImportError:
        return import_open_clip()


class OpenClip(TwoTowers):
    """A model of open_clip."""

    @property
    def tower(self) -> Any:
        """The text tower; the first CLIP models are their own."""
        return getattr(self.net, "text", self.net)

    @property
    def _layer(self) -> nn.Module | None:
        if hasattr(self.tower, "token_embedding"):
            return self.tower.token_embedding  # type: ignore[no-any-return]
        find = getattr(getattr(self.tower, "transformer", None), "get_input_embeddings", None)
        return find() if find else None

    @property
    def _visual(self) -> Any:
        return self.net.visual

    def _image(self, pixels: Tensor) -> Any:
        return self.net.encode_image(pixels, normalize=False)

    def _text(self, ids: Tensor) -> Any:
        return self.net.encode_text(ids, normalize=False)

    def _ids(self, texts: Sequence[str]) -> Tensor:
        return self.tokenizer(list(texts)).to(self.device)  # type: ignore[no-any-return]  # (N, T)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        if _is_causal(self.tower):
            return self.encode_embeddings(*self.token_embeddings(texts))
        return super().encode_text(texts)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        if _is_causal(self.tower):
            return unit(_encode_causal(self.tower, ids, embeddings))
        return super().encode_embeddings(ids, embeddings)


def _pool(tower: Any) -> str:
    return str(getattr(tower, "text_pool_type", None) or getattr(tower, "pool_type", ""))


def _is_causal(tower: Any) -> bool:
    """Whether no token of the tower sees what comes after it, and the end token is read."""
    return (
        getattr(tower, "attn_mask", None) is not None
        and getattr(tower, "cls_emb", None) is None
        and _pool(tower) in ("argmax", "eos")
    )


def _encode_causal(tower: Any, ids: Tensor, x: Tensor) -> Tensor:
    """A causal tower up to the last token that is read: the padding behind it costs nothing."""
    if _pool(tower) == "argmax":
        end = ids.argmax(-1)  # the end token has the highest id
    else:
        eos = getattr(tower, "text_eos_id", None) or tower.eos_id
        end = (ids == eos).int().argmax(-1)
    length = int(end.max()) + 1
    x = x[:, :length] + tower.positional_embedding[:length]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:length, :length])  # (N, length, w)
    x = tower.ln_final(x[torch.arange(len(x), device=x.device), end])  # (N, w)
    project = tower.text_projection
    if project is None:
        return x
    return project(x) if isinstance(project, nn.Module) else x @ project  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- loading


def load_open_clip(
    arch: str,
    tag: str | None,
    weights: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
) -> OpenClip:
    """An architecture with the weights of a tag, of a file, or random ones, in float32 on CPU.

    Args:
        arch: a name of open_clip, such as "ViT-B-16".
        tag: what the weights are called there, such as "openai".
        weights: a checkpoint file to use instead, or "random".
        tokenizer: a folder with the tokenizer's files where the hub's cannot be had, or a callable
            from texts to ids (N, T).
    """
    open_clip = import_open_clip()
    if arch not in open_clip.list_models():
        raise unknown_model(arch if tag is None else f"{arch}/{tag}", open_clip)
    tags = open_clip.list_pretrained_tags_by_model(arch)
    if tag is not None and not open_clip.pretrained.is_pretrained_cfg(arch, tag):
        raise unknown(f"tag of {arch!r}", tag, tags)
    if tag is None and weights is None:
        raise InputError(
            f"{arch!r} names an architecture without weights; choose a tag, as in "
            f"'{arch}/{tags[0] if tags else 'TAG'}', or pass weights=FILE or weights='random'"
            + (f" (tags: {', '.join(tags)})" if tags else "")
        )
    facts: dict[str, Any] = open_clip.pretrained.get_pretrained_cfg(arch, tag or "")
    source = str(weights) if weights is not None else _fetch(f"{arch}/{tag}", facts, open_clip)
    config = open_clip.get_model_config(arch)
    tokens = _tokenizer(arch, config["text_cfg"], tokenizer, open_clip)
    own_format = source.endswith((".npz", ".npy"))  # big_vision's
    state = None if own_format or source == RANDOM else read_checkpoint(source)
    # OpenAI's own files carry three sizes along; their models all use QuickGELU.
    openai = state is not None and {"input_resolution", "context_length"} <= state.keys()
    net = _build(arch, facts.get("quick_gelu", False) or openai, open_clip)
    if state is not None:
        load_checked(net, _convert(net, state, open_clip), repr(source))
    elif own_format:
        open_clip.factory.load_checkpoint(net, source)
    preprocess = read_preprocess(net, facts or _common(arch, tags, open_clip))
    name = arch if tag is None else f"{arch}/{tag}"
    return OpenClip(net, tokens, preprocess, name, config["embed_dim"])


def unknown_model(name: str, open_clip: Any) -> UnknownModel:
    """There are hundreds of names: suggest one, whatever its case, and say how to list them."""
    pairs = (f"{a}/{t}" for a, t in open_clip.list_pretrained())
    models = {n.lower(): n for n in open_clip.list_models()}
    known = {n.lower(): n for n in (*registered(), *pairs)} | models
    close = get_close_matches(name.lower(), known, 1, 0.5)
    close = close or get_close_matches(name.lower().partition("/")[0], models, 1)
    meant = f"hf:{name}" if os.path.isdir(name) else known[close[0]] if close else ""
    hint = f" (did you mean {meant!r}?)" if meant else ""
    return UnknownModel(f"unknown model {name!r}{hint}; `adte models` lists what there is")


class Published(NamedTuple):
    """The weights of a tag: at an address, in a repository of the hub, or both."""

    url: str
    repo: str
    on_hub: tuple[str, ...]  # names in the repository; the first that exists is taken

    @property
    def files(self) -> tuple[str, ...]:
        """Names of which one is looked for in `folder`."""
        return (Path(self.url).name,) if self.url else self.on_hub

    @property
    def folder(self) -> Path:
        """Where `adte models get` puts a file."""
        return Path(CACHE).expanduser() / ("" if self.url else self.repo.replace("/", "--"))

    @property
    def cached(self) -> Path | None:
        """The file in `folder`, if there is one."""
        return next((p for p in map(self.folder.joinpath, self.files) if p.is_file()), None)

    def __str__(self) -> str:
        files = " or ".join(self.files)
        return f"{files} " + (
            f"from {self.url}" if self.url else f"of the hub repository {self.repo!r}"
        )


def published(facts: Mapping[str, Any], open_clip: Any) -> Published:
    """Where the weights are, from open_clip's settings for a tag."""
    repo, _, file = facts.get("hf_hub", "").rpartition("/")
    files = open_clip.constants.HF_SAFE_WEIGHTS_NAME, open_clip.constants.HF_WEIGHTS_NAME
    if file:
        files = str(Path(file).with_suffix(".safetensors")), file
    return Published(facts.get("url", ""), repo, files)


def _fetch(name: str, facts: dict[str, Any], open_clip: Any) -> str:
    """The checkpoint of a tag on disk: from the caches, else downloaded where a hub answers."""
    wanted = published(facts, open_clip)
    if path := wanted.cached or (wanted.repo and fetch(wanted.repo, wanted.on_hub)):
        return str(path)
    if wanted.url and not wanted.repo and hub_reachable(wanted.url):
        return str(open_clip.download_pretrained(facts))
    more = f", or bring a copy of the weights by `adte models get {name} --from PLACE`"
    raise not_here(name, wanted, more)


def _build(arch: str, quick: bool, open_clip: Any) -> nn.Module:
    # As open_clip.create_model does, without its search for weights of single towers on a hub.
    config = open_clip.get_model_config(arch)
    text, vision = config["text_cfg"], config["vision_cfg"]
    config["quick_gelu"] = bool(config.get("quick_gelu")) or quick
    custom = config.pop("custom_text", False) or "hf_model_name" in text
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    if "hf_model_name" in text:
        text["hf_model_pretrained"] = False
        if fetch(text["hf_model_name"], ["config.json"]) is None:
            raise InputError(
                f"{arch} takes its text tower's shape from config.json of the hub repository "
                f"{text['hf_model_name']!r}, which is not on this machine and cannot be "
                "downloaded; put that repository into the hub's cache folder"
            )
    kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    kind = open_clip.CoCa if custom and "multimodal_cfg" in config else kind
    return kind(**config)  # type: ignore[no-any-return]


def _convert(net: Any, state: dict[str, Tensor], open_clip: Any) -> dict[str, Tensor]:
    """Older and foreign layouts of a checkpoint to the names of this module."""
    ours = net.state_dict()
    state = {
        k: v
        for k, v in state.items()
        if k not in ("input_resolution", "context_length", "vocab_size")
        and not (k.endswith("position_ids") and k not in ours)
    }
    if not set(state) & set(ours) - {"logit_scale", "logit_bias"}:
        with suppress(Exception):  # a layout it does not know: the check will name what differs
            state = dict(open_clip.convert.convert_state_dict(net, state))
    if "positional_embedding" in state and "positional_embedding" not in ours:
        state = open_clip.model.convert_to_custom_text_state_dict(state)
    for key in ("logit_scale", "logit_bias"):  # a number, or a vector of one
        if key in state and key in ours:
            state[key] = state[key].reshape(ours[key].shape)
    return state


def _common(arch: str, tags: list[str], open_clip: Any) -> dict[str, Any]:
    """The preprocessing that all tags of an architecture share; CLIP's where they differ."""
    keys = ("mean", "std", "interpolation", "resize_mode")
    facts = [open_clip.pretrained.get_pretrained_cfg(arch, tag) for tag in tags]
    same = [{k: f[k] for k in keys if k in f} for f in facts]
    return same[0] if same and all(s == same[0] for s in same) else {}


def read_preprocess(net: Any, facts: Mapping[str, Any]) -> Preprocess:
    """The preprocessing of open_clip, from its settings for a tag or a model."""
    size = net.visual.image_size
    height, width = (size, size) if isinstance(size, int) else size
    resize = facts.get("resize_mode", "shortest")
    if height != width or resize not in ("shortest", "squash"):
        raise InputError(
            f"this model takes images of {height} × {width} pixels by {resize!r} resizing; "
            "choose one with square input, its shortest side resized or squashed"
        )
    default = Preprocess()
    return Preprocess(
        size=int(height),
        mean=tuple(facts.get("mean", default.mean)),
        std=tuple(facts.get("std", default.std)),
        interpolation=facts.get("interpolation", "bicubic"),
        resize=resize,
        crop=facts.get("crop", 1.0),
    )


def _tokenizer(arch: str, text: dict[str, Any], given: Any, open_clip: Any) -> Tokenizer:
    if callable(given):
        return given  # type: ignore[no-any-return]
    source = given or text.get("hf_tokenizer_name")
    if not source:
        return open_clip.get_tokenizer(arch)  # type: ignore[no-any-return]
    if given is not None and not Path(given).is_dir():
        raise InputError(f"the tokenizer folder {str(given)!r} does not exist; check the path")
    import_late("transformers", "transformers", "hf", f"the tokenizer of {arch}")
    options = {
        "context_length": text.get("context_length", 77),
        "tokenizer_mode": text.get("tokenizer_mode"),
        **text.get("tokenizer_kwargs", {}),
    }
    load = partial(open_clip.tokenizer.HFTokenizer, **options)
    with suppress(InputError):
        if has_words((tokens := local_first(load, str(source), "tokenizer.json")).tokenizer):
            return tokens  # type: ignore[no-any-return]
    if given is not None:
        raise InputError(
            f"the folder {str(given)!r} holds no tokenizer that transformers can read; it needs "
            "tokenizer.json and tokenizer_config.json"
        )
    raise InputError(
        f"the tokenizer of {arch} is not on this machine and cannot be downloaded; get "
        f"tokenizer.json and tokenizer_config.json of the hub repository {source!r}, put them "
        "into a folder, and pass tokenizer=THAT_FOLDER (--tokenizer on the command line)"
    )
