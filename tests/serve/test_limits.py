"""What the limits admit, in the sizes that docs/operations.md tells."""

from __future__ import annotations

import pytest
from PIL import Image

from adte import InputError
from adte.core.state import nbytes
from adte.methods import create_method
from adte.serve import limits as limiting
from adte.serve.limits import PIXELS, Gate, Limits, Refused


def test_sizes_that_the_guide_tells_fit_the_limits():
    def size(classes: int, **options: float) -> int:
        return nbytes(create_method("tilt", **options).entries(), {"L": classes, "D": 512})

    assert size(1000) == pytest.approx(2.1e6, rel=0.01)
    assert size(1000, likeness=0) == pytest.approx(32e3, rel=0.01)
    assert size(20_000) == pytest.approx(42e6, rel=0.01)
    assert size(20_000) < Limits().max_state
    assert size(7_500) < Limits().max_bytes < size(8_500)


def test_no_more_pixels_than_pillow_opens():
    assert 2 * Image.MAX_IMAGE_PIXELS == PIXELS
    Limits(max_pixels=PIXELS)
    with pytest.raises(InputError, match=f"must be at least 1 and at most {PIXELS}"):
        Limits(max_pixels=PIXELS + 1)


@pytest.mark.parametrize("wrong", [{"queue": 0}, {"queue": 1.5}, {"rate": -1}, {"body_seconds": 0}])
def test_limits_are_held_to_their_bounds(wrong):
    assert Limits(rate=0) == Limits()
    with pytest.raises(InputError, match=f"{next(iter(wrong))}=.* of the service "):
        Limits(**wrong)


def test_a_rate_starves_nobody(monkeypatch):
    """Twelve at once beside one every second; over time both have what is allowed together."""
    gate, now, done, late = Gate(Limits(rate=5)), 0.0, [0, 0], {1: 0.0, 12: 0.0}
    monkeypatch.setattr(limiting.time, "monotonic", lambda: now)
    for tick in range(600):
        now = tick / 10
        for kind, images in enumerate((1, 12)):
            if now < late[images]:
                continue
            try:
                gate.spend(gate, images)
                done[kind] += images
                late[images] = now + 1
            except Refused as error:
                late[images] = now + error.retry_after
    assert done[0] >= 10
    assert done[1] >= 8 * 12
    assert sum(done) <= 5 * 60 + 5 + 12
