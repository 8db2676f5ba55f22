"""What the limits admit, in the sizes that docs/operations.md tells."""

from __future__ import annotations

import pytest
from PIL import Image

from adte import InputError
from adte.methods import create_method
from adte.serve.limits import PIXELS, Limits
from adte.state import nbytes


def test_sizes_that_the_guide_tells_fit_the_limits():
    def size(classes: int, **options: float) -> int:
        return nbytes(create_method("adte", **options).entries(), {"L": classes, "D": 512})

    assert size(1000) == pytest.approx(2.1e6, rel=0.01)
    assert size(1000, likeness=0) == pytest.approx(40e3, rel=0.01)
    assert size(20_000) == pytest.approx(42e6, rel=0.01)
    assert size(20_000) < Limits().max_state
    assert size(7_500) < Limits().max_bytes < size(8_500)


def test_no_more_pixels_than_pillow_opens():
    assert 2 * Image.MAX_IMAGE_PIXELS == PIXELS
    Limits(max_pixels=PIXELS)
    with pytest.raises(InputError, match="more than Pillow opens; give at most"):
        Limits(max_pixels=PIXELS + 1)
