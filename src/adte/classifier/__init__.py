"""What users hold: a model, its classes, a method, what was learned, and its calibration."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adte.classifier.classifier import Classifier, Share, Unread

__all__ = ["Classifier", "Share", "Unread"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: it needs torch, and the facts of a file do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adte.classifier import classifier

    return getattr(classifier, name)
