"""Bias or frequency: does a model favour some classes, or does the stream show them more often?

Both leave the same trace in the mean prediction m of a stream:

    log m_l ≈ b_l + log(L π_l) + a constant,      b the model's bias, π the stream's frequencies

Counting tells them apart. Biases of a model are many and of like size; a stream that shows few of
its classes repeats them, so its images agree with each other more often than chance would have it.
"""

from adte.bias.host import (
    Joint,
    Sums,
    begun,
    concentration,
    frequencies,
    joint,
    redescending,
    softmax,
    sureness,
    take_in,
)

__all__ = [
    "Joint", "Sums", "begun", "concentration", "frequencies", "joint", "redescending", "softmax",
    "sureness", "take_in",
]  # fmt: skip
