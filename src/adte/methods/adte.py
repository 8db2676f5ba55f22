"""`adte`, the paper's method to the letter, and `adte-released`, its authors' published code.

Both are presets of `Selector`. What the paper leaves open is an option:

    what                     option           adte           why                       adte-released
    ──────────────────────   ──────────────   ────────────   ───────────────────────   ─────────────
    which item goes from a   bank             fifo           "continuously incoming"   gap
    full class
    who is admitted          threshold        0, everybody   no rule is given          1.0
    what an item is          item             base           P(·|x) of the instance    mean-logits
    tolerance ε, steps T     eps, max_iter    1e-4, 500      of the released code      1e-4, 500
    a class without items    empty            uniform        a zero column gives       zero
                                                             log p̃ = −∞
    no image seen yet        warmup           1              q is Shannon's limit      1
    where LA acts            adjust           after          on the averaged answer    none
    prior known when         (protocol)       online         "continuously incoming"   two-pass

and where the two differ although the paper is clear: items per class (`size`, 10 and 20), the norm
of the iteration (`norm`, L1 and L2), and which classes get the smaller q (`direction`): favoured
ones in the paper, neglected ones in the code. Both return the iterate before the one that met the
tolerance (`iterate`), as Algorithm 1 does; if T steps run out, the last. Where all p̃ are equal, q
is α for all classes, as in the code.
"""

from __future__ import annotations

from typing import Any

from adte.methods.registry import preset
from adte.methods.selector import Selector

__all__ = ["PUBLISHED"]

PUBLISHED: dict[str, Any] = {
    "entropy": "adaptive",
    "form": "paper",
    "few": 0,
    "estimator": "fixed-point",
    "iterate": "last-but-one",
    "smoothing": 0.0,
    "smoothing_total": 0.0,
    "clip": 0.0,
}
preset(
    "adte",
    Selector,
    "ADTE, the paper's method: a q for each class from its bias, then logit adjustment",
    **PUBLISHED,
    direction="paper",
    bank="fifo",
    size=10,
    item="base",
    adjust="after",
    norm="l1",
)
preset(
    "adte-released",
    Selector,
    "ADTE as its published code computes it: bank of 20 confident items per class, no adjustment",
    protocol="two-pass",
    **PUBLISHED,
    direction="released",
    bank="gap",
    size=20,
    threshold=1.0,
    item="mean-logits",
    adjust="none",
    norm="l2",
    empty="zero",
)
