"""The way to a Ray cluster, and the ways in which there is none: one sentence each."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adte.core.errors import InputError, MissingExtra
from adte.core.options import check, option
from adte.files import console

__all__ = ["RETRIES", "ClusterOptions", "connected", "gave_up", "import_ray", "places"]

PATIENCE = 5.0  # seconds for the head of a cluster to take a connection
# Of work whose worker died: an image that kills each would never end.
RETRIES = 20
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU of its own hides none
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine takes more than the usual 5
}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the work runs, and how much of it at a time."""

    address: str | None = option(
        None,
        "address of the Ray cluster: auto, HOST:6379 or ray://HOST:10001; without it one is "
        "started on this machine for the run, and stopped",
    )
    workers: int | None = option(
        None,
        "maximum number of workers that load the model; by default as many as the cluster holds",
        low=1,
    )
    gpus: float = option(
        0.0, "GPUs for each worker that loads the model; 0.5 puts two on one GPU", low=0
    )
    chunk: int = option(16, "images sent to a worker at a time", low=1)

    def __post_init__(self) -> None:
        check(self, "a cluster")


def gave_up(error: Exception) -> InputError:
    """The error where Ray gives up."""
    from ray.exceptions import OutOfMemoryError, RayActorError, WorkerCrashedError

    lines = str(error).strip().splitlines()
    what, mend = "the cluster failed", "the same command"
    if isinstance(error, RayActorError | WorkerCrashedError | OutOfMemoryError):
        what = f"workers died {RETRIES + 1} times at the same work"
        mend = "give them more memory, or leave out the image that ends them; then the same command"
    return InputError(
        f"{what} ({lines[-1] if lines else type(error).__name__}); {mend} goes on from what is "
        "written"
    )


def import_ray() -> Any:
    """Ray, late: it is an extra, and takes seconds."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(error.name or "ray", "ray", "a cluster") from error
    return ray


@contextmanager
def connected(options: ClusterOptions | None = None) -> Iterator[Any]:
    """Ray, connected; a cluster that this starts ends with the block, another one stays."""
    options = options or ClusterOptions()
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = _address(options)
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        how |= {"address": "local", "include_dashboard": False}
    else:
        _check_reachable(address)
        how |= {"address": address}
    with _own_end() as take_back:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's own, of versions to come
                ray.init(**how)
        except Exception as error:  # Ray raises plain ones, too
            raise _unreachable(address, error) from error
        except SystemExit:  # Ray's way to answer a SIGTERM while it starts
            take_back()
            signal.raise_signal(signal.SIGTERM)
            raise
        take_back()
        _quieten()
        try:
            yield ray
        finally:
            ray.shutdown()


def _address(options: ClusterOptions) -> str | None:
    """Of a cluster that is there already; None where one is started on this machine."""
    address = options.address or os.environ.get("RAY_ADDRESS")
    return None if address == "local" else address


@contextmanager
def _own_end() -> Iterator[Callable[[], None]]:
    """Keep the handler of SIGTERM that was there: Ray puts its own in its place when it starts.

    What this gives takes the signal back, after that. What the handler raises while Ray waits comes
    out of Ray as a plain `KeyboardInterrupt`; here it is itself again.
    """
    old, raised = signal.getsignal(signal.SIGTERM), list[BaseException]()

    def come(number: int, frame: Any) -> None:
        assert callable(old)
        try:
            old(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    def take_back() -> None:
        if callable(old) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, come)

    try:
        yield take_back
    except KeyboardInterrupt as error:
        if raised and error is not raised[0]:
            raise raised[0] from None
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is come:
            signal.signal(signal.SIGTERM, old)


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes; a closed port is noticed here in seconds."""
    place = address.removeprefix("ray://")
    if place in ("auto", "local"):
        return
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"{address!r} is no address of a Ray cluster; give auto, HOST:6379 or ray://HOST:10001"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE):
            pass
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    why = why.rstrip(".")
    if address is None:
        return InputError(
            f"Ray cannot be started on this machine ({why}); try again when it is less busy, or "
            "start it with `ray start --head` and give --cluster auto"
        )
    return InputError(
        f"the Ray cluster {address} cannot be reached ({why}); start it with `ray start --head`, "
        "or leave --cluster out for one on this machine"
    )


def _quieten() -> None:
    """Keep standard output for the results: Ray prints there that a worker died."""
    for name in ("ray.serve", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if inside := sys.modules.get("ray._private.worker"):
        inside.print_to_stdstream = _aside(set())  # type: ignore[attr-defined]


def _aside(known: set[str]) -> Callable[..., None]:
    """Notes in the place of what Ray prints, its first sentences, each once."""

    def note(data: dict[str, Any], *_: Any, **__: Any) -> None:
        for line in data["lines"]:
            text = ". ".join(str(line).split(". ")[:2])
            if text not in known:
                known.add(text)
                console.say(f"note: Ray says: {text}")

    return note


def places(ray: Any, options: ClusterOptions, least: int = 1) -> int:
    """How many workers with a model the cluster has room for.

    Fewer than `least` are refused on a cluster of this machine, which does not grow. One whose
    address was given may, so its workers are waited for, with a note.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
    room = int(cores)
    if options.gpus:  # a worker has its GPUs on one machine
        room = sum(int(node.get("GPU", 0.0) / options.gpus + 1e-9) for node in nodes)
    if room < least:
        workers = "a worker asks" if least == 1 else f"{least} workers ask"
        each = f"{options.gpus:g} GPUs on one machine" if options.gpus else "1 CPU"
        lack = f"the cluster has {cores:g} CPUs and {gpus:g} GPUs, but {workers} for {each}"
        lack += " each" * (least > 1)
        if _address(options) is not None:
            console.say(f"note: {lack}; waiting for more machines")
            return least
        wanted = {"workers": least > 1, "gpus": options.gpus}
        lower = " or ".join(f"--cluster-{name}" for name, value in wanted.items() if value)
        raise InputError(f"{lack}; {f'lower {lower}' if lower else 'give it a machine with a CPU'}")
    return min(room, options.workers) if options.workers else room
