"""All views of a group of images at once, on the device that encodes them.

    images ─pack→ one uint8 buffer: a table of views, then the pixels ─upload→ device ─render→ views

`table` says what each view shows, as a box in the pixels that are uploaded. `fused` is one Triton
kernel that crops, resizes, mirrors and normalises; `plain` does the same with matrix products,
where there is no Triton. Both work as Pillow does, and round where it rounds: columns first, then
rows, whole grey levels after each.
"""

from adte.rendering.render import pack, render
from adte.rendering.table import Shown, show, where

__all__ = ["Shown", "pack", "render", "show", "where"]
