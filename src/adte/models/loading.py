"""Models by name: load, list by pattern, and where to put them.

| name | what it is |
|---|---|
| `lite`, `lite2` | for photographs; no network |
| `tiny`, `tiny-longtail` | small, for tests and studies; no network |
| `ViT-B-16/openai` | an architecture and a tag of open_clip |
| `ViT-B-16` | an architecture of open_clip; needs `weights=` |
| `hf:ID` or `hf:FOLDER` | CLIP, SigLIP or SigLIP2 of transformers |
| `timm:NAME` | an image-only classifier of timm with fixed classes |

A package of your own adds names with `register_model` and `register_models`, see
`adte.core.registry`.
All that `load_model` takes beside a name is declared once, as `adte.core.loading.Loading`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from adte.core.errors import InputError, MissingExtra, UnknownModel
from adte.core.loading import EMBEDDED, MOST_THREADS, Loading
from adte.core.machine import as_it_is
from adte.core.options import at_least
from adte.models._weights import RANDOM
from adte.models.base import Model
from adte.models.fast import check_runtime, with_runtime
from adte.models.openclip import load_open_clip, open_clip_names
from adte.models.registry import KINDS, NAMES, registered
from adte.models.wrap import check_model

__all__ = [
    "check_loading",
    "default_device",
    "default_dtype",
    "find_device",
    "find_dtype",
    "list_models",
    "load_model",
    "load_with",
]

Weights = str | os.PathLike[str] | None

_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")  # instructions on x86 and ARM


def default_device() -> torch.device:
    """CUDA if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def find_device(given: torch.device | str) -> torch.device:
    """The device of this name, if it can be used here; an `InputError` otherwise."""
    try:
        place = torch.device(given)
        torch.empty(0, device=place).tolist()  # fails on devices that hold no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        reason = "there is none of this name" if reason.startswith("Expected one of") else reason
        raise InputError(
            f"device={str(given)!r} cannot be used here ({reason}); "
            f"choose {' or '.join([*_accelerators(), 'cpu'])}"
        ) from error
    return place


def _accelerators() -> list[str]:
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [name for name, there in found.items() if there]


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it, else float32.

    The environment variable ADTE_DTYPE, float32 or bfloat16, decides instead where it is set, so
    that results need not depend on the processor.
    """
    forced = os.environ.get("ADTE_DTYPE", "")
    if forced:
        if forced not in ("float32", "bfloat16"):
            raise InputError(
                f"ADTE_DTYPE={forced!r} is no dtype to run models in; set it to float32 or "
                "bfloat16, or leave it unset"
            )
        return torch.float32 if forced == "float32" else torch.bfloat16
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        kernels = device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        fast = kernels and not _cpu_features().isdisjoint(_BFLOAT16)
    return torch.bfloat16 if fast else torch.float32


def find_dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if (
        not isinstance(found, torch.dtype)
        or not found.is_floating_point
        or found.itemsize < 2  # float8 has no arithmetic
    ):
        raise InputError(
            f"dtype={dtype!r} is not a float type to compute in; pass 'float32' or 'bfloat16'"
        )
    return found


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
    runtime: str = "auto",
    threads: int | None = None,
) -> Model:
    """Load a model by name, ready for inference.

    Args:
        name: "lite" (no network needed), a name of open_clip such as "ViT-B-16/openai",
            "hf:ID" or "hf:FOLDER" for transformers, "timm:NAME" for timm. `list_models("ViT*")`
            finds names.
        weights: checkpoint file to load instead of the named weights, or "random" for untrained
            ones.
        device: device to run on; by default CUDA if there is one, else the CPU.
        dtype: dtype of the weights; by default that of the environment variable ADTE_DTYPE, else
            bfloat16 if the device computes in it, else float32. `tiny` is float32 unless another
            is given here.
        tokenizer: folder with the tokenizer's files, for models whose own tokenizer comes from a
            hub and cannot be downloaded.
        runtime: code that computes the image tower where gradients are off: "torch" (the library's
            own), "fast", or "auto", which is "fast" on CUDA if it knows the tower.
        threads: threads that compute the model on a CPU; by default one for small work and all of
            torch's for large, see `Model.at_work`.

    Returns:
        A `Model` in evaluation mode. Its `offers` say what it can do; one of timm has fixed
        classes.

    Raises:
        InputError: if the name is unknown, or the weights, device, runtime or threads cannot be
            used.
        MissingExtra: if the package that the model comes from is not installed.

    >>> load_model("tiny").dim
    128
    """
    check_runtime(runtime)
    _check_threads(threads)
    place = default_device() if device is None else find_device(device)
    kind = find_dtype(dtype) if dtype is not None else default_dtype(place)
    with as_it_is(place), _drawn(weights):
        model, own = _load(_text(name), weights, tokenizer)
        if own is not None and dtype is None:
            kind = own
        check_model(model)
        with suppress(InputError):  # it is asked for where it matters
            model._loaded = model.fingerprint  # before any cast
        model = with_runtime(model.to(place, kind).eval(), runtime)
        if threads is not None:
            model.threads = threads
        return model


def _check_threads(threads: int | None) -> None:
    if threads is not None and at_least("threads", threads, 1) > MOST_THREADS:
        raise InputError(f"threads={threads} are too many; give at most {MOST_THREADS}")


@contextmanager
def _drawn(weights: Weights) -> Iterator[None]:
    """Where weights are random they are the same each time, so that what is cached fits them."""
    if weights != RANDOM:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _load(name: str, weights: Weights, tokenizer: Any) -> tuple[Model, torch.dtype | None]:
    """The model in float32 on the CPU, and the dtype it runs in by default."""
    given = {"weights": weights, "tokenizer": tokenizer}
    given = {k: v for k, v in given.items() if v is not None}
    if name in NAMES:
        load, own = NAMES[name]
        if not given.keys() <= signature(load).parameters.keys():
            raise InputError(
                f"{name!r} has its weights and tokenizer embedded; pass neither, or choose a model "
                "that takes them, such as 'ViT-B-32'"
            )
        return _named(load(**given), "" if given else name), own
    prefix, colon, rest = name.partition(":")
    if prefix == "wrapped" and colon:
        raise UnknownModel(
            f"{name!r} is a model that was handed over with adte.wrap and has no file; wrap it "
            "again and pass the model itself"
        )
    if colon:
        model = KINDS[f"{prefix}:"](rest, weights, tokenizer)
        return _named(model, "" if given else name), None
    if close := get_close_matches(name.lower(), EMBEDDED, 1, 0.8):  # open_clip takes seconds
        raise UnknownModel(f"unknown model {name!r}; did you mean {close[0]!r}?")
    arch, slash, tag = name.partition("/")
    if tag == RANDOM:
        raise InputError(
            f"{name!r} is no model, since 'random' is no name of weights; write "
            f"load_model({arch!r}, weights='random'), or --model {arch} --weights random"
        )
    try:
        return load_open_clip(arch, tag if slash else None, weights, tokenizer), None
    except MissingExtra as error:
        if slash or weights is not None:  # clearly a name of open_clip
            raise
        raise UnknownModel(
            f"unknown model {name!r}; take 'lite', 'hf:…' or 'timm:…', or install open_clip "
            "for names such as 'ViT-B-16/openai': pip install 'adte[clip]'"
        ) from error


def _named(given: Any, name: str) -> Model:
    """The result of a stranger's function, if it is a model, under the name that it is loaded by;
    its own one, where that is empty.
    """
    model = check_model(given)
    if name and model.name != name:
        try:
            model.name = name
        except AttributeError as error:
            raise InputError(
                f"the model of {name!r} says that its name is {model.name!r}, which cannot be "
                "set; let it say the name that it is registered by"
            ) from error
    return model


def _text(name: object) -> str:
    if isinstance(name, str):
        return name
    raise InputError(f"{check_model(name).name!r} is a model already; use it as it is")


def list_models(pattern: str = "*") -> list[str]:
    """List the names of models that match a pattern such as "ViT*", upper or lower case.

    These are the embedded models, those of plug-ins, and those of open_clip if it is installed.
    Names of the Hugging Face hub (`hf:…`) and of timm (`timm:…`) are too many to list.

    >>> list_models("tiny*")
    ['tiny', 'tiny-longtail']
    """
    names = registered()
    if pattern in names:
        return [pattern]  # no need to ask open_clip
    with suppress(MissingExtra):
        names += open_clip_names()
    return [n for n in names if fnmatchcase(n.lower(), pattern.lower())]


def load_with(how: Loading, name: str) -> Model:
    """Load the model of this name with these options."""
    return load_model(name, **asdict(how.loading))


def check_loading(how: Loading) -> None:
    """Refuse, before anything is loaded, what cannot be had on this machine."""
    check_runtime(how.runtime)
    _check_threads(how.threads)
    if how.device is not None:
        find_device(how.device)
    if how.dtype is not None:
        find_dtype(how.dtype)
