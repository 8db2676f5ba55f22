"""Images are prepared ahead of the tower, and passes through a device ahead of the caller.

On a device two streams work side by side: one uploads a group and makes its views, the other runs
the tower. The caller's own stream waits for the tower by an event, so what it does with one group
overlaps with the tower's work on the next. Two groups are under way at most; this is the only place
where the host waits for the device, once a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = ["Encode", "Load", "Passes", "overlapped", "prepared"]

G = TypeVar("G")
K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")

UNDER_WAY = 2  # groups

Load = Callable[[G], Tensor | None]  # a group to its pixels; None for an empty one
Encode = Callable[[Tensor], Tensor]  # pixels to features
Passes = Iterator[tuple[G, tuple[Tensor, Tensor] | None]]  # a group, its pixels and features


def prepared(
    items: Iterable[tuple[K, S]], work: Callable[[S], T], workers: int
) -> Generator[tuple[K, T], None, None]:
    """`work` done on the second of each pair, in order, by threads that are some items ahead.

    Where the items end in an error, those before it come first. Without workers it is done here.
    Close it where it may not be read to its end: that ends the threads.
    """
    if not workers:
        for key, source in items:
            yield key, work(source)
        return
    ahead: deque[tuple[K, Future[T]]] = deque()
    with ExitStack() as stack:
        # A number of threads set in one thread holds for all that begin later, the caller's too.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        pool = ThreadPoolExecutor(workers, "adte-views", lambda: torch.set_num_threads(1))
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        problem: Exception | None = None
        source_of = iter(items)
        while problem is None:
            try:
                key, source = next(source_of)
            except StopIteration:
                break
            except Exception as error:
                problem = error
                break
            ahead.append((key, pool.submit(work, source)))
            if len(ahead) > 2 * workers:  # bounds the memory, not the speed
                done, future = ahead.popleft()
                yield done, future.result()
        for done, future in ahead:
            yield done, future.result()
        if problem is not None:
            raise problem


class _Flight(NamedTuple):
    group: Any
    made: tuple[Tensor, Tensor] | None  # pixels, features
    done: Any  # an event


def overlapped(
    groups: Iterable[G], load: Load[G], encode: Encode, device: torch.device
) -> Passes[G]:
    """Each group with its pixels and features, in order, while the device works on the next."""
    on: Any = torch.cuda if device.type == "cuda" else torch.cpu
    upload, tower = _stream(on, device), _stream(on, device)
    for stream in (upload, tower):
        stream.wait_stream(on.current_stream(device))

    def launch(group: G) -> _Flight:
        with on.stream(upload):
            pixels = load(group)
            loaded = upload.record_event()
        if pixels is None:
            return _Flight(group, None, None)
        with on.stream(tower):
            tower.wait_event(loaded)
            _used_on(pixels, tower)
            features = encode(pixels)
            done = on.Event(blocking=True) if on is torch.cuda else on.Event()
            done.record(tower)
        return _Flight(group, (pixels, features), done)

    def land(flight: _Flight) -> tuple[G, tuple[Tensor, Tensor] | None]:
        if flight.made is not None:
            mine = on.current_stream(device)
            flight.done.wait(mine)
            for x in flight.made:
                _used_on(x, mine)
        return flight.group, flight.made

    flying: deque[_Flight] = deque()
    busy: deque[Any] = deque()
    for group in groups:
        if len(busy) == UNDER_WAY:
            busy.popleft().synchronize()
        flight = launch(group)
        flying.append(flight)
        if flight.done is not None:
            busy.append(flight.done)
        if len(flying) == UNDER_WAY:
            yield land(flying.popleft())
    while flying:
        yield land(flying.popleft())


def _stream(on: Any, device: torch.device) -> Any:
    return on.Stream(device) if on is torch.cuda else on.Stream()


def _used_on(x: Tensor, stream: Any) -> None:
    """Its memory is not given to others before the stream is done with it."""
    if x.is_cuda:
        x.record_stream(stream)
