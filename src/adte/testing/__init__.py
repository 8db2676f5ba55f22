"""Conformance checks for methods and models, ours and yours.

A package that brings a method runs them in its own tests:

    import pytest
    from adte.testing import METHOD_CHECKS

    @pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda c: c.__name__)
    def test_my_method(check):
        check("my-method")

Each check takes a registered name (`METHOD_CHECKS`) or a loaded model (`MODEL_CHECKS`), and fails
by `AssertionError`; pytest shows what was compared.
"""

import sys

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite("adte.testing.methods", "adte.testing.models")

from adte.testing.methods import CHECKS as METHOD_CHECKS
from adte.testing.models import CHECKS as MODEL_CHECKS
from adte.testing.small import SmallModel

__all__ = ["METHOD_CHECKS", "MODEL_CHECKS", "SmallModel"]
