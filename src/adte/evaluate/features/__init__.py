"""Features of labelled images: made live by the pipeline, read from a cache, or a person's own."""

from adte.evaluate.features.arrays import Arrays, from_arrays, from_npz
from adte.evaluate.features.cache import Cache, bundle, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Held, Image

__all__ = [
    "Arrays",
    "Cache",
    "FeatureStream",
    "Held",
    "Image",
    "Live",
    "Recipe",
    "bundle",
    "extract",
    "from_arrays",
    "from_npz",
]
