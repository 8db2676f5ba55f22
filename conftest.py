"""Doctests run in every module of the package but those that need what is not installed."""

import importlib.util
import os

os.environ["ADTE_MODEL"] = "tiny"  # where no model is named: the quick one, in tests and processes

KERNELS = ["src/adte/models/_triton.py", "src/adte/images/fused.py"]

collect_ignore = [] if importlib.util.find_spec("triton") else KERNELS
