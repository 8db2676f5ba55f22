"""Groups through the tower on a device, while the next ones are decoded, uploaded and cropped.

Two streams of the device work side by side: one uploads a group and makes its views, the other runs
the tower. The caller's own stream waits for the tower by an event, so what it does with one group
overlaps with the tower's work on the next. Two groups are under way at most; this is the only place
where the host waits for the device, once a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = ["overlapped"]

G = TypeVar("G")

UNDER_WAY = 2  # groups


class _Flight(NamedTuple):
    group: Any
    made: tuple[Tensor, Tensor] | None  # pixels, features
    done: Any  # an event


def overlapped(
    groups: Iterable[G],
    load: Callable[[G], Tensor | None],
    encode: Callable[[Tensor], Tensor],
    device: torch.device,
) -> Iterator[tuple[G, tuple[Tensor, Tensor] | None]]:
    """Each group with its pixels and features, in order; `load` gives None for an empty one."""
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
