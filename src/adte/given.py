"""What a program gives for images: a folder, an archive, Parquet files, the address of an object
store, one path, or any iterable of images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from adte.errors import InputError, brief
from adte.files.devices import StrPath
from adte.files.inputs import is_archive
from adte.images import find_images

__all__ = ["is_collection", "is_flow", "name_of", "named_images", "refusing"]


def named_images(images: StrPath | Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The images that were given, with their names, in order; what is no stream is refused.

    What of a folder or an archive cannot be read says so when its turn comes.
    """
    if isinstance(images, (str, os.PathLike)):
        return _inside(images)
    try:
        if isinstance(images, bytes | bytearray | memoryview) or _is_whole(images):
            raise TypeError("one image or table, of which each byte, row or name would be one")
        return ((name_of(i, image), image) for i, image in enumerate(images))
    except TypeError as error:
        raise InputError(
            f"{brief(images)} is no stream of images; give a folder or a list of images"
        ) from error


def is_collection(given: Any) -> bool:
    """Whether it names a folder, an archive or the like, and not one image."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    from adte.data.places import is_elsewhere  # all readers come with it

    return (
        is_elsewhere(os.fspath(given))
        or Path(given).is_dir()
        or (is_archive(given) and Path(given).is_file())
    )


def is_flow(given: Any) -> bool:
    """Whether images come out of it one after the other: it is neither one image nor a list."""
    if isinstance(given, (str, os.PathLike)):
        return is_collection(given)
    if isinstance(given, (bytes, bytearray, memoryview, list, tuple)):
        return False
    return isinstance(given, Iterable) and getattr(given, "ndim", 1) == 1


def name_of(number: int, image: Any) -> str:
    """What a prediction says of where it came from: the path, or its place in the list."""
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else f"image {number}"


def _inside(path: StrPath) -> Iterator[tuple[str, Any]]:
    if not is_collection(path):
        yield from ((str(image), image) for image in find_images(path))
        return
    from adte.data.places import expand

    for name, source in expand([os.fspath(path)]):
        if isinstance(source, InputError):
            if Path(name) == Path(path):  # all of it
                raise source
            yield name, refusing(source)
        else:
            yield name, source


def refusing(error: InputError) -> Callable[[], NoReturn]:
    """In the place of an image that cannot be read: it says so when its turn comes."""
    return partial(_refuse, error)


def _refuse(error: InputError) -> NoReturn:
    raise error


def _is_whole(images: Any) -> bool:
    """Whether an array is one image, grey or in colour, not a batch; or a table of pandas."""
    shape: tuple[int, ...] = getattr(images, "shape", ())
    return len(shape) == 2 or (len(shape) == 3 and 3 in (shape[0], shape[2]))
