"""Features of labelled images: made live by the pipeline, or read from a cache."""

from adte.evaluate.features.cache import Cache, bundle, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Held, Image

__all__ = ["Cache", "FeatureStream", "Held", "Image", "Live", "Recipe", "bundle", "extract"]
