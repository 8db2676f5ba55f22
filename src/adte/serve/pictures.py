"""Images from strangers: only the formats that are named, and none that would fill the memory."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from adte.core.page import inline
from adte.images import Preprocess
from adte.serve.limits import Limits, Refused

__all__ = ["Memory", "check_picture", "opened", "thumbnails"]

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


def thumbnails(pixels: Tensor, preprocess: Preprocess, side: int) -> list[str]:
    """The views (V, 3, S, S) as the model sees them, as small JPEGs for a page."""
    mean, std = pixels.new_tensor([preprocess.mean, preprocess.std])[..., None, None]
    levels = ((pixels * std + mean) * 255).round().clamp(0, 255).byte()
    out = []
    for view in levels.permute(0, 2, 3, 1).cpu().numpy():  # (S, S, 3)
        out.append(inline(Image.fromarray(np.ascontiguousarray(view)).resize((side, side))))
    return out
