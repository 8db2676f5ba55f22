"""Readers of data."""

from adte.data.images import find_images

__all__ = ["find_images"]
