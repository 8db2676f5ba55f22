"""Readers of data: sets by name, streams over them, and what it takes to get and check them."""

# ruff: noqa: I001  # readers register their sets, in this order
from adte.data import (  # noqa: F401
    imagenet,
    imagenet_variants,
    coop_lists,
    coop_mat,
    coop_folders,
    imagenet_c,
    cifar,
    cifar_c,
    colored_mnist,
    tiny_imagenet,
    folder,
    table,
    webdataset,
    huggingface,
    remote,
)
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
