"""Shared fixtures: where real data lies, small models, streams."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # small tensors are fastest so
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what it puts behind
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """What asks for no device runs on the CPU: a machine with a GPU tests the same numbers.

    Tests of CUDA ask for it by name. Processes that tests start read ADTE_DEVICE.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adte.models.registry.default_device", lambda: torch.device("cpu"))
        if torch.cuda.is_available():
            patch.setenv("ADTE_DEVICE", "cpu")
        yield


MEASURING = {"test_machine", "test_scale", "test_cuda", "test_cost"}  # what memory is held


@pytest.fixture(autouse=True)
def no_sleep_before_a_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits a quarter of a second for allocators, so that its peak memory is exact.

    Only the tests of that figure need it to be.
    """
    if request.path.stem not in MEASURING:
        monkeypatch.setattr("adte.machine._return_freed", lambda: None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of lent data, which is not part of the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the development data in ../shared/data, which is not here")
    return folder
