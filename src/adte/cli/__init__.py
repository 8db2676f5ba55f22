"""The command line: arguments in, calls out. One verb a job, whose module is imported then."""

from adte.cli._group import main

__all__ = ["main"]
