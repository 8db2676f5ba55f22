"""The arguments of a classifier, checked and made ready.

Images are a folder, an archive, Parquet files, the address of an object store, one path, or any
iterable; a model and a method come by name or as they are; views as a number or with their options.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from adte.core.errors import InputError, UnreadableFile, brief
from adte.files.devices import StrPath
from adte.files.inputs import is_archive
from adte.files.order import watched
from adte.images import Views
from adte.images.decode import find_images
from adte.methods import Method, create_method
from adte.models import FixedClasses, Model, check_model, load_model
from adte.models.base import no_prompts
from adte.models.prompts import SINGLE, Prompts, check_classes, class_weights

__all__ = [
    "checked_names",
    "is_collection",
    "is_flow",
    "make_classes",
    "make_method",
    "make_model",
    "make_views",
    "name_of",
    "named_images",
    "refusing",
]  # fmt: skip


def named_images(
    images: StrPath | Iterable[Any], seed: int | None = None
) -> Iterator[tuple[str, Any]]:
    """The images that were given, with their names; what is no stream is refused.

    Those of a folder or a .zip come in the shuffled order of the seed, unless it is None; others in
    their own. What of a folder or an archive cannot be read says so when its turn comes.
    """
    if isinstance(images, (str, os.PathLike)):
        return _inside(images, seed)
    try:
        if isinstance(images, bytes | bytearray | memoryview) or _is_whole(images):
            raise TypeError("one image or table, of which each byte, row or name would be one")
        return watched(((name_of(i, image), image) for i, image in enumerate(images)), _warn)
    except TypeError as error:
        raise InputError(
            f"{brief(images)} is no stream of images; give a folder or a list of images"
        ) from error


def is_collection(images: Any) -> bool:
    """Whether it names a folder, an archive or the like, and not one image."""
    if not isinstance(images, (str, os.PathLike)):
        return False
    from adte.data.places import is_elsewhere  # all readers come with it

    return (
        is_elsewhere(os.fspath(images))
        or Path(images).is_dir()
        or (is_archive(images) and Path(images).is_file())
    )


def is_flow(images: Any) -> bool:
    """Whether images come out of it one after the other: it is neither one image nor a list."""
    if isinstance(images, (str, os.PathLike)):
        return is_collection(images)
    if isinstance(images, (bytes, bytearray, memoryview, list, tuple)):
        return False
    return isinstance(images, Iterable) and getattr(images, "ndim", 1) == 1


def name_of(number: int, image: Any) -> str:
    """The source of a prediction: the path of its image, or its place in the list."""
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else f"image {number}"


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def _inside(path: StrPath, seed: int | None) -> Iterator[tuple[str, Any]]:
    if not is_collection(path):
        yield from ((str(image), image) for image in find_images(path))
        return
    from adte.data.places import expand, listing

    images, names = listing([os.fspath(path)]), [os.fspath(path)]
    if images is None or seed is None or not images.can_shuffle:
        items = watched(expand(names) if images is None else images.items(None), _warn)
    else:
        items = images.items(seed)
    for name, source in items:
        if isinstance(source, InputError):
            if Path(name) == Path(path):  # all of it
                raise source
            yield name, refusing(UnreadableFile(str(source)))  # which it names
        else:
            yield name, source


def refusing(error: InputError) -> Callable[[], NoReturn]:
    """In the place of an image that cannot be read: it says so when its turn comes."""
    return partial(_refuse, error)


def _refuse(error: InputError) -> NoReturn:
    raise error


def _is_whole(images: Any) -> bool:
    """Whether an array is one image, not a batch; or a table of pandas. What may be both is one."""
    shape: tuple[int, ...] = getattr(images, "shape", ())
    return len(shape) == 2 or (len(shape) == 3 and not {1, 3, 4}.isdisjoint((shape[0], shape[2])))


# --------------------------------------------------------------------------- views, method, model


def make_views(views: int | str | Views, seed: int) -> Views:
    """The views of a number of them, of "auto", or as they are."""
    if isinstance(views, str):
        if views != "auto":
            raise InputError(f"views={views!r} is no number of views; give one, or 'auto'")
        return Views(seed=seed)
    if not isinstance(views, Views):
        return Views(count=views, seed=seed)
    if seed not in (0, views.seed):
        raise InputError(
            f"seed={seed!r} goes with a number of views; views made ready have their own, as "
            f"in Views(seed={seed!r})"
        )
    return views


def make_method(
    method: str | Method, options: Mapping[str, Any], arguments: Collection[str]
) -> Method:
    """The method of a name with its options, or as it is; `arguments` are the classifier's own, of
    which an option may be a slip.
    """
    if isinstance(method, Method):
        if options:
            raise InputError(
                f"option {next(iter(options))!r} goes with a method given by name; "
                "this one was given ready made"
            )
        if method.state_dict():
            raise InputError(
                f"method {method.name!r} has learned already, maybe for other classes; give "
                "clone() of it to another classifier, or load a saved state"
            )
        return method
    try:
        return create_method(method, **options)
    except InputError as error:
        for name in options:
            if close := get_close_matches(name, arguments, 1, 0.85):
                raise InputError(
                    f"a classifier has no argument {name!r}; did you mean {close[0]!r}?"
                ) from error
        raise


def make_model(model: str | Model, runtime: str, **how: Any) -> Model:
    """The model of a name, loaded as it is said how, or as it is."""
    if isinstance(model, str):
        model = load_model(model, runtime=runtime, **how)
    elif runtime != "auto" or any(value is not None for value in how.values()):
        raise InputError(
            f"{', '.join(how)} and runtime go with a model given by name; this one was given ready "
            "made"
        )
    model = check_model(model)
    if not isinstance(model, FixedClasses):
        model.require({"text tower", "class weights"}, by="a classifier of class names")
    return model


def make_classes(
    model: Model, names: Sequence[str] | None, prompts: Prompts
) -> tuple[Model, tuple[str, ...], Tensor | None]:
    """The model for classes of these names, if any were given, their names, and their weights.

    A model of fixed classes is narrowed to those that are named, by name or by id, or keeps all of
    its own; its features are its logits, so there are no weights. One whose classes are numbers, as
    of a head of one's own, takes names for all of them, in order.
    """
    if not isinstance(model, FixedClasses):
        known = tuple(check_classes(()) if names is None else names)
        return model, known, class_weights(model, known, prompts)
    if prompts.descriptions or prompts.templates != Prompts.of(SINGLE).templates:
        raise no_prompts(model)
    if names is not None:
        model = _narrowed(model, tuple(names))
    return model, model.classes, None


def _narrowed(model: FixedClasses, wanted: tuple[str, ...]) -> FixedClasses:
    if set(wanted) <= set(model.classes):
        return model.choose(wanted)
    if set(wanted) <= set(model.ids):
        return model.choose((), wanted)
    if model.classes == model.ids and len(wanted) == model.dim:  # a head that knows no names
        return model.named(wanted)
    return model.choose(wanted)


def checked_names(classes: Any) -> list[str] | None:
    """The names of classes, checked; None if there are none: a model that has its own takes all."""
    nothing = isinstance(classes, (list, tuple)) and not classes
    return None if nothing else check_classes(classes)
