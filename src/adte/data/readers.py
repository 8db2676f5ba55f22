"""The readers of this package; importing them registers their sets, in this order."""

# ruff: noqa: F401, I001
from adte.data import imagenet, coop, cifar, colored_mnist, folder, table, stored, huggingface
