"""Doctests run in every module of the package but those that need what is not installed."""

import importlib.util

collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else ["src/adte/rendering/fused.py", "src/adte/models/_triton.py"]
)
