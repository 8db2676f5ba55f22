"""A model that you already hold, under the contract of this package.

Of open_clip, `wrap(model, open_clip.get_tokenizer("ViT-B-16"))`; of transformers,
`wrap(model, processor=AutoProcessor.from_pretrained(…))`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from adte.core.errors import InputError, brief
from adte.images import Preprocess
from adte.models.base import FixedClasses, ImageClassifier, Model
from adte.models.huggingface import KINDS, HuggingFace
from adte.models.huggingface import read_preprocess as hugging_face_preprocess
from adte.models.openclip import OpenClip
from adte.models.openclip import read_preprocess as open_clip_preprocess

__all__ = ["check_model", "wrap"]

FACTS = ("name", "dim", "preprocess", "logit_scale")  # what a subclass of Model has to say


def wrap(
    model: Any,
    tokenizer: Any = None,
    preprocess: Any = None,
    *,
    processor: Any = None,
    name: str | None = None,
    classes: Sequence[str] | None = None,
) -> Model:
    """Turn a model of open_clip or transformers that you already have into a `Model`.

    With `classes`, any module that turns images into logits of these classes.

    Weights are shared, not copied, except for the logit scale and bias, which are read once. If you
    train your model, wrap it again and make another `Classifier`, which encodes its classes anew.
    Your own model is not changed: neither its mode (train or eval), nor its hooks, device or dtype.
    The wrapped model is in eval mode, and can be moved with `.to`.

    Args:
        model: a model of open_clip, or a CLIP, SigLIP or SigLIP2 model of transformers; with
            `classes`, a module that returns logits (N, L) of pixels (N, 3, S, S).
        tokenizer: the model's tokenizer, of open_clip or transformers.
        preprocess: a `Preprocess`, open_clip's transform for evaluation, or an image processor of
            transformers; by default what the model says about itself.
        processor: a processor of transformers, which is tokenizer and image processor in one.
        name: name that is saved with a classifier's state; by default "wrapped:" and the name of
            the class. If it is a name by which `load_model` finds the same weights, a saved
            classifier can be loaded without passing the model.
        classes: names of an image classifier's classes, in the order of its outputs. It needs a
            `preprocess`, too.

    Raises:
        InputError: if the model is of another kind, or its tokenizer is missing or does not fit.
    """
    if isinstance(model, Model):
        return model
    name = f"wrapped:{type(model).__name__}" if name is None else name
    if isinstance(model, nn.Module) and any(
        p.is_meta or isinstance(p, UninitializedParameter) for p in model.parameters()
    ):
        raise InputError(f"{_kind(model)} has no weights yet; load them, or run it once, first")
    if classes is not None:
        return _image_classifier(model, classes, preprocess, name)
    if _of_open_clip(model):
        return _open_clip(model, tokenizer, preprocess, name)
    if _of_transformers(model):
        return _hugging_face(model, tokenizer, preprocess, processor, name)
    raise InputError(
        f"{_kind(model)} cannot be wrapped; give a model of open_clip, or CLIP, SigLIP or SigLIP2 "
        "of transformers, an image classifier with classes=…, or write a subclass of adte.Model"
    )


def check_model(given: Any) -> Model:
    """Return a `Model` as it is; raise an `InputError` that says what to do for anything else."""
    if isinstance(given, Model):
        if "_modules" not in vars(given):
            raise InputError(
                f"{_kind(given)} is not set up; call super().__init__() in its __init__"
            )
        if lacking := [fact for fact in FACTS if not hasattr(given, fact)]:
            raise InputError(
                f"{_kind(given)} does not say its {' and '.join(lacking)}; give it what adte.Model "
                "lists"
            )
        if odd := _odd_fact(given):
            raise InputError(f"{_kind(given)} has {odd}")
        return given
    if _of_open_clip(given):
        reason = "is a model of open_clip as it is; give adte.wrap(model, tokenizer=…) instead"
    elif _of_transformers(given):
        reason = "is a model of transformers as it is; give adte.wrap(model, processor=…) instead"
    elif isinstance(given, tuple) and any(map(_of_open_clip, given)):
        reason = "holds a model of open_clip; give adte.wrap(model, tokenizer=…) of that alone"
    else:
        reason = "is no model; give a name for load_model, or a subclass of adte.Model"
    raise InputError(f"{_kind(given)} {reason}")


def _odd_fact(model: Any) -> str:
    """The fact of a model that cannot be, and the mend; empty where all can be."""
    if not isinstance(model.name, str) or not model.name:
        return f"name={model.name!r}; give it a text"
    if not isinstance(model.preprocess, Preprocess):
        return f"preprocess={brief(model.preprocess)}; give it an adte.Preprocess, of numbers alone"
    if not isinstance(model.dim, Integral) or model.dim < 1:
        return f"dim={model.dim!r}; give it the width of its features"
    scale = model.logit_scale
    odd = f"logit_scale={brief(scale)}; give it the factor on the cosine, 100 for CLIP"
    try:
        factor = float(scale.detach() if isinstance(scale, torch.Tensor) else scale)
    except (TypeError, ValueError, RuntimeError):
        return odd
    return "" if 0 < factor < math.inf and not isinstance(scale, str) else odd


def _kind(thing: object) -> str:
    package, name = type(thing).__module__.partition(".")[0], type(thing).__name__
    return name if package == "builtins" else f"{package}'s {name}"


def _of_open_clip(thing: object) -> bool:
    mine = any(k.__module__.partition(".")[0] == "open_clip" for k in type(thing).__mro__)
    return mine and all(hasattr(thing, k) for k in ("visual", "encode_image", "encode_text"))


def _of_transformers(thing: object) -> bool:
    kind = getattr(getattr(thing, "config", None), "model_type", None)
    return kind in KINDS and hasattr(thing, "get_image_features")


def _twin(net: nn.Module) -> nn.Module:
    """The same weights in modules of its own, in eval mode: moving one does not move the other."""
    shared: dict[int, Any] = {id(b): b.detach() for b in net.buffers()}
    shared |= {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in net.parameters()}
    return copy.deepcopy(net, shared).eval()


def _open_clip(net: nn.Module, tokenizer: Any, preprocess: Any, name: str) -> OpenClip:
    if not callable(tokenizer):
        raise InputError(
            "a model of open_clip does not know its tokenizer; pass "
            "adte.wrap(model, tokenizer=open_clip.get_tokenizer(NAME))"
        )
    twin: Any = _twin(net)
    if not isinstance(preprocess, Preprocess):
        facts = getattr(twin.visual, "preprocess_cfg", {})
        if preprocess is not None:
            facts = _steps(preprocess, _side(twin))
        preprocess = open_clip_preprocess(twin, facts)
    model = OpenClip(twin, tokenizer, preprocess, name, dim=0).eval()
    model.dim = _tried(model, "tokenizer", "open_clip.get_tokenizer of the model's own name")
    _tried(model, "preprocessing", "the transform of the model's own name")
    return model


def _side(net: Any) -> int:
    size = net.visual.image_size
    return int(size if isinstance(size, int) else size[0])


def _steps(transform: Any, side: int) -> dict[str, Any]:
    """open_clip's transform for evaluation as settings."""
    steps = {type(t).__name__: t for t in getattr(transform, "transforms", ())}
    resize, normal = steps.get("Resize"), steps.get("Normalize")
    if resize is None or normal is None or any("Random" in step for step in steps):
        raise InputError(
            f"the preprocessing {type(transform).__name__} cannot be read; pass the last of what "
            "open_clip.create_model_and_transforms returns, or an adte.Preprocess"
        )
    size = _sizes(resize)
    crop = _sizes(steps["CenterCrop"]) if "CenterCrop" in steps else size
    alone = len(size) == 1 and "CenterCrop" not in steps
    if alone or len({*size}) > 1 or len({*crop}) > 1 or crop[0] > size[0]:
        raise InputError(
            f"the preprocessing resizes to {size} and cuts to {crop}, which cannot be done here; "
            "cut a square from the resized image, or pass an adte.Preprocess"
        )
    if crop[0] != side:
        raise InputError(
            f"the preprocessing gives images of {crop[0]} pixels, and the model takes {side}; "
            "pass the transform of the model's own name, or an adte.Preprocess"
        )
    return {
        "mean": tuple(map(float, normal.mean)),
        "std": tuple(map(float, normal.std)),
        "interpolation": str(getattr(resize.interpolation, "value", resize.interpolation)),
        "resize_mode": "shortest" if len(size) == 1 else "squash",
        "crop": crop[0] / size[0],
    }


def _sizes(step: Any) -> tuple[int, ...]:
    """One number where it is that of the shorter side, else height and width."""
    return (step.size,) if isinstance(step.size, int) else tuple(step.size)


def _image_classifier(net: Any, classes: Any, preprocess: Any, name: str) -> FixedClasses:
    if _of_open_clip(net) or _of_transformers(net):
        raise InputError(f"{_kind(net)} reads class names; give them to the classifier, not here")
    if not isinstance(net, nn.Module):
        raise InputError(f"{_kind(net)} is no module of torch; give one that returns logits")
    if not isinstance(preprocess, Preprocess):
        raise InputError(
            "an image classifier does not say how its pixels are made; pass "
            "preprocess=adte.Preprocess(size=224, mean=…, std=…)"
        )
    names = () if isinstance(classes, str) else tuple(classes)
    if not names or not all(isinstance(c, str) for c in names):
        raise InputError(f"classes={brief(classes)} are no list of names")
    places = [*map(str, range(len(names)))]
    model = ImageClassifier(_twin(net), name, names, places, preprocess).eval()
    _tried(model, "preprocessing", "one name for each of its outputs, and its own input")
    return model


def _hugging_face(
    net: Any, tokenizer: Any, preprocess: Any, processor: Any, name: str
) -> HuggingFace:
    tokenizer = tokenizer or getattr(processor, "tokenizer", None)
    preprocess = preprocess or getattr(processor, "image_processor", None)
    if tokenizer is None:
        raise InputError(
            "a model of transformers does not know its tokenizer; pass "
            "adte.wrap(model, processor=AutoProcessor.from_pretrained(NAME))"
        )
    if not isinstance(preprocess, Preprocess):
        if preprocess is not None and not hasattr(preprocess, "to_dict"):
            raise InputError(
                f"the preprocessing {_kind(preprocess)} cannot be read; pass an image processor of "
                "transformers, or an adte.Preprocess"
            )
        facts: Mapping[str, Any] = preprocess.to_dict() if preprocess is not None else {}
        preprocess = hugging_face_preprocess(facts, net.config)
    model = HuggingFace(_twin(net), tokenizer, preprocess, name).eval()
    for what in ("tokenizer", "preprocessing"):
        _tried(model, what, "processor=AutoProcessor.from_pretrained of the model's own name")
    return model


def _tried(model: Model, what: str, mend: str) -> int:
    """Width of the features of a text or an image, if the tokenizer or preprocessing fits."""
    side = model.preprocess.size
    blank = torch.zeros(1, 3, side, side, device=model.device, dtype=model.dtype)
    try:
        with torch.no_grad():
            if what == "tokenizer":
                found = model.encode_text(["a photo."])
            else:
                found = model.encode_image(blank)
        if found.shape != (1, model.dim or found.shape[-1]):
            raise ValueError(f"it gives {tuple(found.shape)} for one")
    except Exception as error:  # whatever another model's tokens or sizes do to a tower
        reason = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"the {what} does not go with the model ({reason[0]}); pass {mend}"
        ) from error
    return int(found.shape[-1])
