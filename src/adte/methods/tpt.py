"""TPT: tune the prompt on each image until its sure views agree."""

from __future__ import annotations

from dataclasses import dataclass

from adte.core.prediction import Prediction
from adte.methods.prompt_tuning import Episode, PromptMethod
from adte.methods.registry import register

__all__ = ["TPT"]


@register("tpt")
@dataclass(kw_only=True, eq=False)
class TPT(PromptMethod):
    """The base view, with a prompt tuned on the image's surest views.

    The context c, four token embeddings shared by all classes, starts at "a photo of a".
    1. z = s·f·T(c)ᵀ for all views; the 10 % of lowest entropy are kept, once.
    2. loss = H(p̄), the entropy of the mean distribution of the kept views; AdamW, one step on c.
    3. The base view is predicted under the new c. Then c and the optimiser are as before.

    With one step of a fresh AdamW the size of the gradient plays no part, only its signs. The
    authors blend AugMix into the views of fine-grained sets; here views are the caller's.
    `entropy` replaces Shannon's in both 1 and 2.

    >>> TPT().params["lr"], TPT(entropy="adaptive").stateful
    (0.005, True)
    """

    reference = (
        "Shu et al., Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language "
        "Models, NeurIPS 2022, arXiv:2209.07511, github.com/azshue/TPT"
    )

    def adapt(self, e: Episode) -> Prediction:
        weights, entropy, kept = self.tune(e)
        return self.answer(e.take([0]).logits(weights)[0], e.log_prior, entropy, kept)
