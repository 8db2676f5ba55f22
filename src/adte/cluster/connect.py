"""The way to a Ray cluster, and the ways in which there is none: one sentence each."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adte.errors import InputError, MissingExtra
from adte.options import option

__all__ = ["ClusterOptions", "connected", "import_ray", "places"]

PATIENCE = 5.0  # seconds for the head of a cluster to take a connection
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU of its own hides none
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine takes more than the usual 5
}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the work runs, and how much of it at a time."""

    address: str | None = option(
        None,
        "address of a Ray cluster: auto, HOST:6379 or ray://HOST:10001; without it one is started "
        "on this machine, and ended",
    )
    workers: int | None = option(
        None, "workers with a model of their own at most; as many as there is room for by default"
    )
    decoders: int = option(
        0, "workers that open pictures for the others, at most; 0 leaves it to those with a model"
    )
    gpus: float = option(0.0, "GPUs for each worker with a model")
    chunk: int = option(16, "images that travel together")

    def __post_init__(self) -> None:
        for name, good, mend in (
            ("workers", self.workers is None or self.workers >= 1, "give at least 1"),
            ("decoders", self.decoders >= 0, "give 0 or more"),
            ("gpus", self.gpus >= 0, "give 0 or more"),
            ("chunk", self.chunk >= 1, "give at least 1"),
        ):
            if not good:
                raise InputError(f"{name}={getattr(self, name)} of a cluster cannot be; {mend}")


def import_ray() -> Any:
    """Ray, late: it is an extra, and takes seconds."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
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
    address = options.address or os.environ.get("RAY_ADDRESS")
    said: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        said |= {"address": "local", "include_dashboard": False}
    else:
        _check_reachable(address)
        said |= {"address": address}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, of versions to come
            ray.init(**said)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        raise _unreachable(address or "of this machine", error) from error
    _quieten(ray)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes; a closed port is told from an open one in seconds."""
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


def _unreachable(address: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return InputError(
        f"the Ray cluster {address} cannot be reached ({why.rstrip('.')}); start it with `ray "
        "start --head`, or leave --cluster out for one on this machine"
    )


def _quieten(ray: Any) -> None:
    """One bar is ours to show; Ray's own would run through it."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.log_internal_stack_trace_to_stdout = False
    for name in ("ray.data", "ray.serve", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)


def places(ray: Any, options: ClusterOptions) -> int:
    """How many workers with a model the cluster has room for."""
    have = ray.cluster_resources()
    room = have.get("GPU", 0) / options.gpus if options.gpus else have.get("CPU", 1)
    room = max(1, int(room) - (0 if options.gpus else options.decoders))
    return min(room, options.workers) if options.workers else room
