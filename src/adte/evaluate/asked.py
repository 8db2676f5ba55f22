"""The options of a `Source`, as plain data, without torch: a command line can show them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adte.core.loading import Loading
from adte.core.options import option

__all__ = ["FEATURES", "Asked"]

FEATURES = ("cache:", "npz:")  # data that begins so is features, and no images


@dataclass(frozen=True, kw_only=True)
class Asked(Loading):
    """Where labelled features come from: what words can say."""

    data: Sequence[str] = option(
        (),
        "data set as NAME:PATH, such as folder:photos (repeat for several), or features that were "
        "computed before, cache:FOLDER or npz:FILE",
    )
    model: Any = option(  # noqa: RUF009  # a name, or in Python a `Model`
        None, "model to encode images with; by default `lite`, or the one that made the cache"
    )
    batch: int | None = option(
        None,
        "images per call of the method, and per pass of the image tower on a GPU; 16 by default",
        low=1,
    )
    seed: int | None = option(
        None,
        "seed of the order of the images and of their views; by default 0, or that of the cache",
        low=0,
    )
    corrupt: str = option(
        "", "corrupt the images on the fly, as in fog,jpeg_compression; common is 15 types, all 19"
    )
    severity: str = option("5", "severity of the corruptions, 1 to 5, or several as in 1,3 or 1-5")
    clean: bool = option(True, "keep the clean images too, as a domain beside the corrupted ones")
    workers: int | None = option(
        None,
        "threads that decode and crop; by default one per CPU core but one, at most 8",
        low=0,
    )
    strict: bool = option(
        False, "stop at an unreadable image; without this it is named, left out, and no error"
    )
    prompt_set: str = option("default", "name under which a cache keeps these prompts")
