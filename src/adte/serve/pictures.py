"""Images from strangers: only the formats that are named, and none that would fill the memory."""

from __future__ import annotations

import io
import re
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from adte.classifier import Classifier
from adte.core.errors import InputError
from adte.core.page import inline
from adte.images import Crop, Preprocess
from adte.images.boxes import of_base
from adte.images.decode import decoding_bytes
from adte.serve.limits import Limits, Refused

__all__ = ["Memory", "Part", "check_picture", "opened", "prepared", "thumbnails"]

BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
SCANS = 100  # of a JPEG, ten being usual; each goes over all pixels, and may have a few bytes
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # that ends the image, or has a length


def opened(data: bytes, formats: Sequence[str]) -> Image.Image:
    """An image by its header, not yet decoded; only these formats are tried."""
    return Image.open(io.BytesIO(data), formats=list(formats))


def check_picture(data: bytes, limits: Limits) -> Image.Image:
    """An image that may be decoded, or a refusal."""
    if not data:
        raise Refused(422, "image", "the image has no bytes; send a complete file")
    try:
        image = opened(data, limits.allowed)
    except UnidentifiedImageError:
        known = ", ".join(limits.allowed)
        raise Refused(
            415, "format", f"these {len(data)} bytes are no image of a known format; send {known}"
        ) from None
    except BOMBS:
        raise _large(limits) from None
    except MemoryError:
        raise
    except Exception:  # by format: OSError, SyntaxError, ValueError, struct.error, …
        raise Refused(
            422, "image", f"the header of these {len(data)} bytes is damaged; send a complete file"
        ) from None
    width, height = image.size
    if width * height > limits.max_pixels:
        raise _large(limits, f"the image has {width} × {height} pixels")
    if width < 1 or height < 1:
        raise Refused(422, "image", "the image has no pixels; send another")
    if data.startswith(b"\xff\xd8") and _many_scans(data):
        raise Refused(422, "image", f"the JPEG has more than {SCANS} scans; save it anew")
    return image


def _many_scans(data: bytes) -> bool:
    """Whether a JPEG would take long for its pixels; what lies behind its end does not count."""
    scans, at = 0, 2
    while scans <= SCANS and (found := MARKER.search(data, at)):
        kind, at = data[found.end() - 1], found.end()
        if kind == 0xD9:
            break
        scans += kind == 0xDA
        at += int.from_bytes(data[at : at + 2], "big")
    return scans > SCANS


def _large(limits: Limits, what: str = "the image declares too many pixels") -> Refused:
    return Refused(
        413,
        "pixels",
        f"{what}, more than the {limits.max_pixels:,} allowed; make it smaller",
    )


class Part(NamedTuple):
    """One image of a request on its way, and what an explanation shows of it.

    `content` is prepared for the tower; behind it, it is `Encoded`.
    """

    content: Any
    size: tuple[int, int] = (0, 0)  # width, height
    boxes: list[Crop] | None = None
    thumbnails: list[str] | None = None


class Memory:
    """Bytes in which images are decoded; who finds too few waits. More than all goes alone."""

    def __init__(self, size: int) -> None:
        self._all = self._free = size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        size = min(size, self._all)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def prepared(
    image: Image.Image, clf: Classifier, memory: Memory, explain: bool = False, side: int = 0
) -> Part:
    """An image decoded and made ready for the tower; to explain it, with its boxes and, if `side`
    is not 0, small pictures of its views.
    """
    pipeline, preprocess = clf.pipeline, clf.model.preprocess
    fraction = partial(clf.views.fraction, preprocess=preprocess)
    with memory.taken(decoding_bytes(image, fraction)):
        try:
            if not explain:
                return Part(pipeline.prepare(image))
            picture = pipeline.picture(image)
            views = pipeline.prepare(picture)
        except Exception as error:  # which waits for its turn, without the pixels
            for e in (error, error.__cause__):
                traceback.clear_frames(e.__traceback__ if e else None)
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from None
            if isinstance(error, InputError):
                raise Refused(422, "image", str(error)) from error
            raise
        shown = None
        if side:  # of what a GPU made, what the CPU would have made: they are alike
            pixels = views if isinstance(views, Tensor) else pipeline.render(picture)
            shown = thumbnails(pixels, preprocess, side)
        base = of_base(picture, preprocess).crop(picture.step)
        boxes = [base, *pipeline.views.plan(picture, preprocess)]
        return Part(views, (picture.width, picture.height), boxes, shown)


def thumbnails(pixels: Tensor, preprocess: Preprocess, side: int) -> list[str]:
    """The views (V, 3, S, S) as the model sees them, as small JPEGs for a page."""
    mean, std = pixels.new_tensor([preprocess.mean, preprocess.std])[..., None, None]
    levels = ((pixels * std + mean) * 255).round().clamp(0, 255).byte()
    out = []
    for view in levels.permute(0, 2, 3, 1).cpu().numpy():  # (S, S, 3)
        out.append(inline(Image.fromarray(np.ascontiguousarray(view)).resize((side, side))))
    return out
