"""Doctests run in every module of the package but those that need what is not installed."""

import importlib.util

KERNELS = ["src/adte/models/_triton.py", "src/adte/images/fused.py"]

collect_ignore = [] if importlib.util.find_spec("triton") else KERNELS
