"""Views in rounds: no more are drawn than the answer needs.

Views are random crops, so the answer, a mean of their predictions weighed by exp(−H), has a
sampling error that the views drawn so far tell. Drawing stops when the lead of the first class over
the second is more than `SURE` times the error that is left, of k views in place of n:

    d_v = P_v[first] − P_v[second],   m = Σ w_v d_v,   m > SURE · √(1 − k/n) · √(Σ w_v² (d_v − m)²)

The logits are adjusted by what the method has learned, since that can change who leads. No label is
needed. `benchmarks/auto.py` measures what it costs and saves.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["SURE", "enough", "rounds"]

FIRST, NEXT = 12, 4  # views of the first round, and of each that follows
SURE = 2.0  # standard errors


def rounds(most: int) -> list[range]:
    """The views of each round.

    >>> rounds(18)
    [range(0, 12), range(12, 16), range(16, 18)]
    """
    ends = [*range(FIRST, most, NEXT), most]
    return [range(a, b) for a, b in zip([0, *ends], ends, strict=False)]


def enough(logits: Tensor, most: int, adjustment: Tensor | None = None, sure: float = SURE) -> bool:
    """Whether the views so far decide; logits (k, L), of `most` views at most.

    The adjustment (L,) comes off them.

    >>> import torch
    >>> clear, torn = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> enough(clear.repeat(8, 1), 64), enough(torn.repeat(4, 1), 64)
    (True, False)
    """
    if len(logits) >= most:
        return True
    z = logits.float()
    if adjustment is not None:
        z = z - adjustment.to(z)
    log_p = z.log_softmax(-1)
    p = log_p.exp()
    w = (p * log_p).sum(-1).softmax(0)  # exp(−H)
    first, second = (w @ p).topk(min(2, p.shape[-1])).indices[[0, -1]]
    lead = p[:, first] - p[:, second]
    mean = w @ lead
    error = (w * (lead - mean)).square().sum().sqrt()
    left = (1 - len(z) / most) ** 0.5
    return bool(mean > sure * left * error)
