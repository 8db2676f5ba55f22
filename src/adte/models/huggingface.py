"""CLIP, SigLIP and SigLIP2 of transformers, by hub id or by folder: `load_model("hf:…")`.

A folder holds what `save_pretrained` writes: config.json, the weights, the tokenizer's files and
preprocessor_config.json. SigLIP's logits go through a softmax over classes; see `openclip.py`.

SigLIP2's flexible-resolution models take patches. Views are square, so they are cut into the square
grid with the most patches that the model takes, and a photograph is squashed to it.

Reference: `huggingface/transformers`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor, nn

from adte.core.errors import InputError
from adte.images import Preprocess
from adte.models._torchvision import import_late
from adte.models._towers import TwoTowers, has_words, text_lengths
from adte.models._weights import RANDOM, fetch, load_checked, local_first, read_checkpoint
from adte.models.registry import register_models

__all__ = ["KINDS", "HuggingFace", "load_hugging_face", "read_preprocess"]

KINDS = ("clip", "siglip", "siglip2")
_RESAMPLE: dict[Any, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # Pillow's
_HALF = (0.5, 0.5, 0.5)
_PATCHES = 256  # of SigLIP2's flexible models, where the folder does not say


class HuggingFace(TwoTowers):
    """A model of transformers."""

    def __init__(self, net: Any, tokenizer: Any, preprocess: Preprocess, name: str) -> None:
        text, self.kind = net.config.text_config, str(net.config.model_type)
        self.context = int(text.max_position_embeddings)
        dim = net.config.projection_dim if self.kind == "clip" else text.projection_size
        super().__init__(net, tokenizer, preprocess, name, int(dim))

    @property
    def _layer(self) -> nn.Module:
        return self.net.text_model.embeddings.token_embedding  # type: ignore[no-any-return]

    @property
    def _visual(self) -> Any:
        return self.net

    def _image(self, pixels: Tensor) -> Any:
        if self.kind != "siglip2":
            return self.net.get_image_features(pixel_values=pixels)
        side = self.net.config.vision_config.patch_size
        n, _, height, width = pixels.shape
        grid = height // side, width // side
        x = pixels.reshape(n, 3, grid[0], side, grid[1], side)
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(n, grid[0] * grid[1], -1)  # (N, patches, 3 side²)
        shapes = torch.tensor([grid] * n, device=x.device)
        mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        return self.net.get_image_features(
            pixel_values=x, pixel_attention_mask=mask, spatial_shapes=shapes
        )

    def _text(self, ids: Tensor) -> Any:
        return self.net.get_text_features(input_ids=ids)

    def _ids(self, texts: Sequence[str]) -> Tensor:
        # CLIP reads the end token and sees nothing behind it; SigLIP was trained on full length
        padding = "longest" if self.kind == "clip" else "max_length"
        options = {"padding": padding, "truncation": True, "max_length": self.context}
        batch = self.tokenizer(list(texts), return_tensors="pt", **options)
        return batch["input_ids"].to(self.device)  # type: ignore[no-any-return]  # (N, T)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        if self.kind == "clip":  # nothing behind the end token is seen
            end = int(text_lengths(ids).max())
            ids, embeddings = ids[:, :end], embeddings[:, :end]
        return super().encode_embeddings(ids, embeddings)


# ---------------------------------------------------------------------- loading


@register_models("hf:")
def load_hugging_face(
    source: str,
    weights: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | Any | None = None,
) -> HuggingFace:
    """A model by hub id or folder, in float32 on the CPU.

    Args:
        source: a folder, or an id such as "openai/clip-vit-base-patch16".
        weights: a checkpoint file to use instead, or "random"; the shape still comes from `source`.
        tokenizer: a folder with the tokenizer's files, or a tokenizer of transformers, where the
            source has none.
    """
    transformers = import_late("transformers", "transformers", "hf", "a Hugging Face model")
    folder = Path(source).expanduser()
    if not folder.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise InputError(f"the model folder {source!r} does not exist; check the path")
    where = str(folder) if folder.is_dir() else source
    config = local_first(transformers.AutoConfig.from_pretrained, where, "config.json")
    if config.model_type not in KINDS:
        raise InputError(
            f"{source!r} is a model of type {config.model_type!r}, which cannot be used here; "
            f"choose one of type {', '.join(KINDS)}"
        )
    parts = (config, config.text_config, config.vision_config)
    if any("/" in str(getattr(part, "_attn_implementation", "")) for part in parts):
        raise InputError(
            f"the config.json of {source!r} names code of a hub for its attention, which is not "
            "run; take attn_implementation out of it"
        )
    tokens = _tokenizer(where, tokenizer, transformers)
    if weights is None:
        net = local_first(_pretrained(transformers), where, "model.safetensors")
    else:
        net = transformers.AutoModel.from_config(config)
        if str(weights) != RANDOM:
            load_checked(net, read_checkpoint(weights), repr(str(weights)))
    return HuggingFace(net, tokens, read_preprocess(_facts(where), config), f"hf:{source}")


def _pretrained(transformers: Any) -> Callable[..., Any]:
    def load(where: str, **options: Any) -> Any:
        how = {"output_loading_info": True, "dtype": torch.float32, "weights_only": True}
        try:
            net, info = transformers.AutoModel.from_pretrained(where, **how, **options)
        except (UnpicklingError, EOFError) as error:
            raise InputError(
                f"the weights of {where!r} are damaged or hold more than tensors, which could run "
                "code; take a model with model.safetensors"
            ) from error
        except RuntimeError as error:  # shapes differ
            raise InputError(
                f"the weights of {where!r} do not fit its config.json "
                f"({str(error).splitlines()[0]}); download the model again"
            ) from error
        missing = sorted(info["missing_keys"])
        if wrong := sorted(info.get("mismatched_keys") or []):
            name, there, here = wrong[0]
            raise InputError(
                f"the weights of {where!r} are of another architecture than its config.json: "
                f"tensor {name!r} has shape {tuple(there)} in the file and {tuple(here)} in the "
                "model; download the model again"
            )
        if missing:
            raise InputError(
                f"the weights of {where!r} lack tensor {missing[0]!r} and {len(missing) - 1} "
                "more; download the model again"
            )
        return net

    return load


def _tokenizer(where: str, given: Any, transformers: Any) -> Any:
    if given is not None and not isinstance(given, str | os.PathLike):
        return given
    source = where if given is None else str(given)
    with suppress(InputError):
        load = transformers.AutoTokenizer.from_pretrained
        if has_words(tokens := local_first(load, source, "tokenizer.json")):
            return tokens
    raise InputError(
        f"no tokenizer for {where!r} in {source!r}; put its tokenizer.json and "
        "tokenizer_config.json into a folder, and pass tokenizer=THAT_FOLDER (--tokenizer on the "
        "command line)"
    )


def _facts(where: str) -> dict[str, Any]:
    names = ("preprocessor_config.json", "processor_config.json")
    if Path(where).is_dir():
        found = next((str(Path(where, n)) for n in names if Path(where, n).is_file()), None)
    else:
        found = fetch(where, names)
    if not found:
        return {}
    facts: dict[str, Any] = json.loads(Path(found).read_text(encoding="utf-8"))
    return facts.get("image_processor", facts)  # type: ignore[no-any-return]


def read_preprocess(facts: Mapping[str, Any], config: Any) -> Preprocess:
    """The work of an image processor of transformers, from its settings and the model's config."""
    clip, default = config.model_type == "clip", Preprocess()
    vision = config.vision_config
    for key, usual in (("do_resize", True), ("do_rescale", True), ("rescale_factor", 1 / 255)):
        value = facts.get(key)
        if value is not None and abs(value - usual) > 1e-6:
            raise _inexpressible(key, value)
    if config.model_type == "siglip2":
        side = vision.patch_size * math.isqrt(int(facts.get("max_num_patches", _PATCHES)))
        facts = {**facts, "size": side, "do_center_crop": False}
    side, crop, resize = _sides(facts, getattr(vision, "image_size", 224), clip)
    resample = facts.get("resample")
    resample = (3 if clip else 2) if resample is None else resample
    if resample not in _RESAMPLE:
        raise _inexpressible("resample", resample)
    mean = facts.get("image_mean") or (default.mean if clip else _HALF)
    std = facts.get("image_std") or (default.std if clip else _HALF)
    if facts.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Preprocess(
        size=crop,
        mean=tuple(mean),
        std=tuple(std),
        interpolation=_RESAMPLE[resample],
        resize=resize,
        crop=crop / side,
    )


def _sides(
    facts: Mapping[str, Any], usual: int, clip: bool
) -> tuple[int, int, Literal["shortest", "squash"]]:
    """The side that an image is resized to, the side that is cut from it, and how it is resized."""
    cut = facts.get("do_center_crop")
    cut = clip if cut is None else cut
    crop: Any = facts.get("crop_size") if cut else None
    if isinstance(crop, Mapping):
        crop = crop.get("height") if crop.get("height") == crop.get("width") else -1
    size = facts.get("size") or crop or usual
    if not isinstance(size, Mapping):
        size = {"shortest_edge": size} if clip else {"height": size, "width": size}
    short = size.get("shortest_edge")
    side = int(short or size.get("height") or 0)
    crop = crop or side
    square = cut if short else size.get("height") == size.get("width")
    if not square or size.get("longest_edge") or not 0 < int(crop) <= side:
        what = {"size": dict(size), "crop_size": facts.get("crop_size"), "do_center_crop": cut}
        raise _inexpressible("resizing", what)
    return side, int(crop), "shortest" if short else "squash"


def _inexpressible(key: str, value: object) -> InputError:
    return InputError(
        f"the image processor has {key}={value!r}, which cannot be done here; choose a model "
        "whose images are resized bilinearly or bicubically to a square or cut to one, or wrap it "
        "with an adte.Preprocess"
    )
