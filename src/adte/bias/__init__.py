"""Bias or frequency: does a model favour some classes, or does the stream show them more often?

Both leave the same trace in the mean prediction m of a stream:

    log m_l ≈ b_l + log(L π_l) + a constant,      b the model's bias, π the stream's frequencies

Counting tells them apart. A stream that shows few of its classes repeats them, so its images agree
with each other more often than chance would have it. Where a model has lost its way, so do they,
for it calls many things by the same names; but then those names are probable in all images, and
not in a few.
"""

from adte.bias.host import (
    Joint,
    Sums,
    begun,
    by_chance,
    concentration,
    elsewhere,
    frequencies,
    joint,
    redescending,
    softmax,
    sureness,
    take_in,
)
from adte.bias.likely import LIKELY, Likely, among, concentration_among

__all__ = [
    "LIKELY", "Joint", "Likely", "Sums", "among", "begun", "by_chance", "concentration",
    "concentration_among", "elsewhere", "frequencies", "joint", "redescending", "softmax",
    "sureness", "take_in",
]  # fmt: skip
