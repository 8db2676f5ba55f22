"""An image becomes views: the base view first, then random resized crops, resized and normalised.

The crops of an image depend on its key and the seed alone, so they are the same in every batch,
order and worker, and its first k views are the same however many are asked for. An image smaller
than the model's input is cropped and resized otherwise: see `Views.fitted`.

Resizing agrees with Pillow's `crop(box).resize(…)` to within two grey levels. Pillow itself makes
the base view and bicubic crops. Bilinear crops, the common case, are made as products with banded
matrices, or by torch's uint8 kernels where the processor has AVX.

A JPEG above 4 megapixels is decoded at 1/2, 1/4 or 1/8 of its size where every crop still has 1.5
times the pixels it needs; its boxes lie on a grid of 8 pixels, so they are whole at each scale.

`decode` reads files; `boxes`, `drawing` and `resize` plan and draw views on a CPU. All views of a
group of images at once, on the device that encodes them:

    images ─pack→ one uint8 buffer: a table of views, then the pixels ─upload→ device ─render→ views

`table` says what each view shows, as a box in the pixels that are uploaded. `fused` is one Triton
kernel that crops, resizes, mirrors and normalises; where there is no Triton, `render` does the same
with matrix products. Both work as Pillow does, and round where it rounds: columns first, then rows,
whole grey levels after each.
"""

from typing import TYPE_CHECKING, Any

from adte.images.boxes import Crop
from adte.images.decode import Picture, load_image
from adte.images.drawing import KERNELS, Views, load_picture
from adte.images.preprocess import Preprocess

if TYPE_CHECKING:
    from adte.images.resize import base_view

__all__ = [
    "KERNELS",
    "Crop",
    "Picture",
    "Preprocess",
    "Views",
    "base_view",
    "load_image",
    "load_picture",
]


def __getattr__(name: str) -> Any:
    """`base_view` is imported when it is asked for: it needs torch, and options do not."""
    if name != "base_view":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adte.images.resize import base_view

    return base_view
