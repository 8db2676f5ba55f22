"""What users hold: a model, its classes, a method, what was learned, and its calibration."""

from adte.classifier.classifier import Classifier, Share, Unread

__all__ = ["Classifier", "Share", "Unread"]
