"""The command line: arguments in, calls out. One verb a job."""

from adte.cli import (  # noqa: F401  # each adds its verbs
    bench,
    demo,
    evaluate,
    lists,
    models_get,
    paper,
    predict,
    report,
    serve,
)
from adte.cli._group import main

__all__ = ["main"]
