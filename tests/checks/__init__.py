"""Checks that every registered method must pass; tests/test_methods.py runs them."""
