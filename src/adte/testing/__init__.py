"""Conformance checks that every method and model must pass, for the tests of your own package.

A package that brings a method runs them like this:

    import pytest
    from adte.testing import METHOD_CHECKS

    @pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda c: c.__name__)
    def test_my_method(check):
        check("my-method")

`METHOD_CHECKS` and `MODEL_CHECKS` are lists of functions. Each takes the registered name of a
method, or a loaded model, and raises an `AssertionError` if the check fails.
"""

import sys

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite("adte.testing.methods", "adte.testing.models")

from adte.testing.methods import CHECKS as METHOD_CHECKS
from adte.testing.models import CHECKS as MODEL_CHECKS
from adte.testing.small import SmallModel

__all__ = ["METHOD_CHECKS", "MODEL_CHECKS", "SmallModel"]
