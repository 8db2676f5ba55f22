"""The command line: arguments in, calls out. One verb a job."""

from adte.cli import bench, evaluate, lists, paper, report, use  # noqa: F401  # each adds its verbs
from adte.cli._group import main

__all__ = ["main"]
