"""The version of this package: also where it runs from a source tree, not installed."""

__version__ = "0.2.0"
