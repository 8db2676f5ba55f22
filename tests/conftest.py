"""Shared fixtures: where real data lies, small models, streams."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from processes import Processes

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # small tensors are fastest so
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what it puts behind
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What asks for no device runs on the CPU: a machine with a GPU tests the same numbers.

    Tests of CUDA ask for it by name. Processes that tests start read ADTE_DEVICE. What is kept for
    a user is kept in a folder of the tests' own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("user")))
        patch.setattr("adte.models.loading.default_device", lambda: torch.device("cpu"))
        if torch.cuda.is_available():
            patch.setenv("ADTE_DEVICE", "cpu")
        yield


@pytest.fixture(scope="session")
def script_of() -> Callable[[str], ModuleType]:
    """A script of benchmarks/ as a module, by its name."""

    def load(name: str) -> ModuleType:
        path = ROOT / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)  # its dataclasses look themselves up among the modules
        return module

    return load


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Real Chromium, driven by Playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    if binary is None:
        pytest.skip("needs Chromium")
    with driver.sync_playwright() as play:
        found = play.chromium.launch(executable_path=binary, args=["--no-sandbox"], timeout=300_000)
        yield found
        found.close()


MEASURING = {"test_machine", "test_scale", "test_cuda", "test_cost"}  # what memory is held


@pytest.fixture(autouse=True)
def no_sleep_before_a_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits a quarter of a second for allocators, so that its peak memory is exact.

    Only the tests of that figure need it to be.
    """
    if request.path.stem not in MEASURING:
        monkeypatch.setattr("adte.core.machine._return_freed", lambda: None)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Real processes, forked from a warm one."""
    made = Processes(tmp_path_factory.mktemp("logs"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of lent data, which is not part of the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the development data in ../shared/data, which is not here")
    return folder
