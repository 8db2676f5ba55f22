"""A person's own features as a stream: from arrays in memory, or from an .npz file."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from math import log
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte.core.errors import InputError, unknown
from adte.core.options import at_least
from adte.data.streams import another_order, order_digest
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import Held, Image
from adte.files.order import Order
from adte.images import Views
from adte.models.prompts import note_repeats

__all__ = ["from_arrays", "from_npz"]

ROWS = 256  # images that are normalised at a time
NEEDED = "image (N, D) or (N, V, D), text (L, D) and label (N,)"
TEXTS = ("names", "ids", "domains")
ENTRIES = {"image", "text", "label", "scale", "bias", *TEXTS}


def from_arrays(
    features: Any,
    class_weights: Any,
    labels: Any,
    classes: Sequence[str] | None = None,
    scale: float = 100.0,
    *,
    bias: float = 0.0,
    ids: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    name: str = "own data",
    order: Order = "shuffled",
    seed: int = 0,
) -> Held:
    """Make a stream from features of your own, for `adte.compare` and `adte.evaluate.run`.

    Everything may be a NumPy array, a tensor or a list. Features and class weights are brought to
    unit length; features are kept in float16, as in a cache. Rows are mostly sorted by class, which
    costs methods that learn accuracy, so the stream is a shuffle of them.

    Args:
        features: features of N images (N, D), or of V views of each (N, V, D), where view 0 is the
            whole image.
        class_weights: text features of L classes (L, D).
        labels: true class of each image (N,), as whole numbers from 0 on. They are only used to
            score.
        classes: names of the classes; by default "class 0" and so on.
        scale, bias: logits are scale · cosine + bias. CLIP's scale is 100 (not its logarithm).
        ids: names of the images.
        domains: domain of each image, for accuracy by domain.
        name: name of the data, for reports.
        order: "shuffled", within each domain where they come one after the other, or "listed", as
            the rows are.
        seed: of the shuffle.

    Raises:
        InputError: if shapes do not fit, or labels are not whole numbers from 0 to L − 1.

    >>> import adte, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> weights, labels = rng.normal(size=(3, 8)), rng.integers(0, 3, 20)
    >>> stream = from_arrays(weights[labels] + rng.normal(size=(20, 8)), weights, labels)
    >>> [row["method"] for row in adte.compare(stream, ["zero-shot", "tilt"])]
    ['zero-shot', 'tilt']
    """
    x = _unit(features, "image features", (2, 3))
    x = x[:, None] if x.ndim == 2 else x
    weights = _unit(class_weights, "class weights", (2,))
    if x.shape[2] != weights.shape[1]:
        raise InputError(
            f"class weights of shape {tuple(weights.shape)} do not fit image features of width "
            f"{x.shape[2]}; give (L, {x.shape[2]}), a row per class"
        )
    count, known = len(x), len(weights)
    truth = _labels(labels, count, known)
    names = _names("class names", classes, known, "class weights") or [
        f"class {i}" for i in range(known)
    ]
    ids = _names("ids", ids, count, "images") or [str(i) for i in range(count)]
    domains = _names("domains", domains, count, "images") or [""] * count
    note_repeats(names)
    if order not in get_args(Order):
        raise unknown("order of rows", order, get_args(Order))
    turns = np.arange(count)
    counts = dict(Counter(domains))
    if order == "shuffled":
        seed = at_least("seed", seed, 0)
        turns = another_order({"domain_counts": counts}, truth, lambda: domains, seed)
    scale, bias = _number(scale, "scale"), _number(bias, "bias")
    if not (np.isfinite(scale) and scale > 0 and np.isfinite(bias)):
        raise InputError(f"scale={scale}, bias={bias} cannot be used; give numbers, scale above 0")
    if abs(scale - log(100)) < 0.01:
        warnings.warn(
            f"scale={scale:.4g} looks like the logarithm of CLIP's 100; give exp(scale), as "
            "model.logit_scale.exp()",
            stacklevel=2,
        )
    digest = blake2b(digest_size=8)  # runs of other numbers are other runs
    for tensor in (x, weights):
        digest.update(tensor.numpy().reshape(-1).view(np.uint8).data)
    about = {"name": name, "split": "features as given", "images": count, "classes": known}
    recipe = Recipe(
        model="own features",
        fingerprint=digest.hexdigest(),
        dtype="float16",
        dim=x.shape[2],
        scale=scale,
        bias=bias,
        views=Views(count=x.shape[1]),
        data={
            "images": count,
            "order": order,
            **({"seed": seed} if order == "shuffled" else {}),
            "datasets": [about],
            "domain_counts": counts,
            "digest": order_digest((ids[i], domains[i]) for i in turns),
        },
        classes=tuple(names),
        class_ids=tuple(str(i) for i in range(known)),
        prompts={"name": "class weights as given"},
    )
    images = map(Image, x, truth.tolist(), ids, domains)
    return Held(list(images), recipe, weights).ordered(turns)


def from_npz(path: str | os.PathLike[str], order: Order = "shuffled", seed: int = 0) -> Held:
    """Make a stream from features in an .npz file, as `from_arrays` does from arrays.

    The file has the arrays `image` (features), `text` (class weights) and `label`, and may have
    `names` (of the classes), `scale`, `bias`, `ids` and `domains`. Other arrays are ignored.
    """
    where = Path(os.path.expanduser(path))
    given: dict[str, Any] = {}
    try:
        file = np.load(where, allow_pickle=False)  # Python's objects may run code
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is one array without a name")
        with file:
            names = list(file)
            for name in ENTRIES & {*names}:
                given[name] = _texts(file[name]) if name in TEXTS else file[name]
    except FileNotFoundError as error:
        raise InputError(f"{str(where)!r} does not exist; check the path") from error
    except Exception as error:  # what NumPy, zipfile and zlib make of a damaged file is any
        raise InputError(
            f"cannot read features from {str(where)!r} ({error}); give an .npz with {NEEDED}, all "
            "of numbers or of texts (dtype=str)"
        ) from error
    for key in ("image", "text", "label"):
        if key not in given:
            raise InputError(
                f"{str(where)!r} has no entry {key!r}; it has {', '.join(names) or 'nothing'}; "
                f"write one with {NEEDED}"
            )
    image, text, label, classes = (given.pop(k, None) for k in ("image", "text", "label", "names"))
    try:
        return from_arrays(
            image, text, label, classes, name=where.stem, order=order, seed=seed, **given
        )
    except (TypeError, ValueError) as error:  # an InputError is one
        raise InputError(f"in {str(where)!r}: {error}") from error


def _names(what: str, given: Sequence[Any] | None, wanted: int, of: str) -> list[str]:
    names = [] if given is None else list(map(str, given))
    if given is not None and len(names) != wanted:
        raise InputError(f"there are {len(names)} {what} for {wanted} {of}; give one for each")
    return names


def _number(given: Any, what: str) -> float:
    """A number, be it in an array or a tensor of one."""
    try:
        return float(given.item() if hasattr(given, "item") else given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what}={given!r} is no number; give a single one") from error


def _texts(given: np.ndarray[Any, Any]) -> list[Any]:
    """Names of an array, as texts where they are bytes."""
    return [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in given.tolist()]


def _unit(given: Any, what: str, dims: tuple[int, ...]) -> Tensor:
    """Unit vectors along the last axis: float16 for features, float32 for weights."""
    wanted = "(N, D) or (N, V, D)" if 3 in dims else "(L, D), a row per class"
    try:
        x = given.detach() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:  # rows of unequal length
        raise InputError(f"the {what} are no array ({error}); give {wanted}") from error
    numbers = not x.is_complex() if isinstance(x, Tensor) else x.dtype.kind in "fiub"
    if not numbers or x.ndim not in dims or 0 in x.shape:
        raise InputError(
            f"the {what} have the shape {tuple(x.shape)} and the type {x.dtype}; give numbers, "
            f"{wanted}"
        )
    out = torch.empty(tuple(x.shape), dtype=torch.float16 if 3 in dims else torch.float32)
    for start in range(0, len(x), ROWS):
        part = x[start : start + ROWS]
        rows = part.double().cpu() if isinstance(part, Tensor) else torch.tensor(part.astype(float))
        length = rows.norm(dim=-1, keepdim=True)
        bad = ~((length > 0) & length.isfinite()).flatten(1).all(1)
        if bad.any():
            raise InputError(
                f"row {start + int(bad.int().argmax())} of the {what} has no direction: it is "
                "zero, infinite or nan; leave it out, or make it anew"
            )
        out[start : start + ROWS] = rows / length
    return out


def _labels(given: Any, images: int, classes: int) -> NDArray[np.int64]:
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    labels = np.asarray(given)
    if labels.shape != (images,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"labels of shape {labels.shape} and type {labels.dtype} do not fit {images} images; "
            "give a whole number for each"
        )
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(
            f"label {bad} has no class; labels must lie in 0…{classes - 1}, the first class being 0"
        )
    return labels.astype(np.int64)
