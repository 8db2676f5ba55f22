"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from serving import Forge


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    found = Forge()
    yield found
    found.close()
