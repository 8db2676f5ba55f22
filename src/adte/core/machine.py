"""The machine: threads, kernels, memory held, and the peak memory of a block of code.

    with PeakMemory() as peak:
        work()
    print(peak.bytes)

On Linux the kernel's high-water mark of resident memory is set back when the block begins, so each
block has its own peak. Memory that was freed before is handed back to the system first; otherwise
the block would use it again unseen. Allocators still keep some tens of MB of small pieces, and that
is how far off it can be. The mark belongs to the process: blocks must not nest, and other threads
count too. On CUDA it is torch's own count of allocated memory.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

__all__ = [
    "PeakMemory", "as_it_is", "compiled", "head_device", "pulled", "resident", "return_large",
    "threads", "threads_for",
]  # fmt: skip

T = TypeVar("T")

log = logging.getLogger("adte")

WORK = 1 << 27  # parameters × inputs that take a core some tenths of a second
_NUMBERS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
_WIDE = ("cpu", "cuda")  # devices that know float64
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block torch computes on `count` threads.

    It takes about a microsecond. Other threads of Python that have used torch are as they were; one
    that first uses it meanwhile keeps `count`.
    """
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(work: int) -> int:
    """Threads of torch for a pass of so many parameters × inputs: one for each `WORK` of them.

    Where a core is busy with something else, threads wait for each other at every layer, so that
    small work takes many times as long on several as on one. There are never more than torch has
    been set to, and as many where OMP_NUM_THREADS or MKL_NUM_THREADS is set.
    """
    most = torch.get_num_threads()
    return most if _NUMBERS & os.environ.keys() else min(most, max(1, work // WORK))


def head_device(device: torch.device | str) -> torch.device:
    """Where methods compute that work on the features of a model on `device`: beside it.

    That is on the CPU for devices other than CUDA's, such as Apple's GPUs, `mps`: they know no
    float64, in which priors are counted. The towers, where nearly all of the time goes, stay there.
    """
    place = torch.device(device)
    return place if place.type in _WIDE else torch.device("cpu")


@contextmanager
def as_it_is(device: torch.device | None = None) -> Iterator[None]:
    """Within the block numbers have the dtype and the device that the code gives them, whatever
    autocast or default device the caller has set; on the host, and on a device that is named.
    """
    with ExitStack() as stack:
        if torch.empty(0).device.type != "cpu":  # torch 2.4 names no device of a `with`
            stack.enter_context(torch.device("cpu"))
        for kind in {"cpu", device.type if device else "cpu"} & {"cpu", "cuda"}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def pulled(items: Iterator[T], device: torch.device) -> Iterator[T]:
    """The items, each of them made `as_it_is`; what is done with them is the caller's."""
    while True:
        with as_it_is(device):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def compiled(module: str, trial: Callable[[Any], object], what: str) -> Any:
    """A module of Triton's kernels, once the trial went well; None, and a warning, where it cannot.

    There may be no Triton, no compiler, an old driver, or a device that it does not know.
    """
    try:
        room = importlib.import_module(module)
        trial(room)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        log.warning("%s without Triton, which is slower (%s)", what, reason)
        return None
    return room


class PeakMemory:
    """A context manager; `bytes` is known when the block has ended.

    Attributes:
        bytes: the peak inside the block minus what was held at its start.
        exact: False where the mark cannot be set back. Then `bytes` is only what the block added to
            the highest peak of the process so far, a lower bound.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.bytes = 0
        self.exact = True
        self._start = 0

    @property
    def _on_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = torch.cuda.memory_allocated(self.device)
            return self
        _return_freed()
        self.exact = _set_back()
        self._start = _high_water(self.exact)
        return self

    def __exit__(self, *error: object) -> None:
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = _high_water(self.exact)
        self.bytes = max(0, peak - self._start)


def resident(pid: int | None = None) -> int:
    """Bytes of memory that a process holds, by default this one; 0 where the system is silent."""
    try:
        pages = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def return_large() -> None:
    """From now on, give memory of 8 MB and more back to the system as soon as it is freed.

    Pillow takes the pixels of a picture in pieces of nearly 16 MB, and glibc would come to keep
    them, for each thread anew.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 8 << 20)  # M_MMAP_THRESHOLD


def _return_freed() -> None:
    """Give memory that allocators keep for later back to the system.

    glibc does so when asked. mimalloc, which some builds of torch hold, does so a tenth of a second
    later, and only when a large piece is freed.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    for _ in range(2):
        time.sleep(0.12)
        torch.empty(32 << 20, dtype=torch.uint8)


def _set_back() -> bool:
    """Lower the high-water mark to what is resident now; False where the system cannot."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return "VmHWM:" in _STATUS.read_text(encoding="ascii")
    except OSError:
        return False


def _high_water(exact: bool) -> int:
    """Highest resident memory in bytes, since it was set back or since the process began."""
    if exact:
        line = _STATUS.read_text(encoding="ascii").partition("VmHWM:")[2]
        return 1024 * int(line.split()[0])
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
