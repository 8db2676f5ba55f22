"""Ray nodes as processes of this machine, and streams to send through them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Ray's workers are at nice 15: beside other tests on two cores they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray warns of its own future, and leaves sockets to the collector; ours stay errors."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        for said in (
            "ignore::ResourceWarning",
            "ignore::pytest.PytestUnraisableExceptionWarning",
            "ignore::pytest.PytestUnhandledThreadExceptionWarning",
            r"ignore:.*:DeprecationWarning:ray\..*",
            r"ignore:.*:FutureWarning:ray\..*",
            r"ignore:.*:UserWarning:ray\..*",
        ):
            item.add_marker(pytest.mark.filterwarnings(said))


@pytest.fixture(scope="session")
def nodes():
    """A cluster of a head without a processor and two nodes with one each; for all tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs ray")
    from clusters import Nodes

    found = Nodes(2)
    yield found
    found.close()
