"""Readers of data: sets by name, streams over them, and what it takes to get and check them."""

from adte.data.base import Dataset, Example, Skipped
from adte.data.check import Finding, check_dataset
from adte.data.corrupted import corrupted
from adte.data.get import download
from adte.data.registry import (
    DatasetInfo,
    Download,
    dataset_info,
    list_datasets,
    load_dataset,
    looks_like,
    register_dataset,
)
from adte.data.streams import Stream, StreamOptions, make_stream
from adte.images.decode import find_images

__all__ = [
    "Dataset",
    "DatasetInfo",
    "Download",
    "Example",
    "Finding",
    "Skipped",
    "Stream",
    "StreamOptions",
    "check_dataset",
    "corrupted",
    "dataset_info",
    "download",
    "find_images",
    "list_datasets",
    "load_dataset",
    "looks_like",
    "make_stream",
    "register_dataset",
]
