"""Peak memory against allocations of known size."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest
import torch

from adte.core import machine
from adte.core.machine import PeakMemory, resident

MB = 1 << 20


def test_methods_compute_beside_the_model_where_there_is_float64() -> None:
    assert [machine.head_device(d).type for d in ("cpu", "mps", "xpu")] == ["cpu"] * 3
    assert machine.head_device("cuda:1") == torch.device("cuda:1")


def touch(megabytes: int) -> torch.Tensor:
    return torch.ones(megabytes * MB, dtype=torch.uint8)


@pytest.mark.skipif(sys.platform != "linux", reason="the mark can be set back on Linux only")
class TestExact:
    @pytest.mark.parametrize("size", [24, 160])
    def test_a_block_that_frees_what_it_took(self, size: int) -> None:
        with PeakMemory() as peak:
            del_me = touch(size)
            del del_me
        assert peak.exact
        assert size * MB <= peak.bytes + MB
        assert peak.bytes < (size + 8) * MB

    @pytest.mark.slow
    def test_each_block_has_its_own_peak(self) -> None:
        with PeakMemory() as large:
            touch(160)
        with PeakMemory() as small:
            touch(32)
        assert large.bytes > 150 * MB
        assert 30 * MB < small.bytes < 60 * MB

    def test_what_was_held_before_does_not_count(self) -> None:
        held = touch(120)
        with PeakMemory() as peak:
            touch(16)
        assert held.numel() == 120 * MB
        assert peak.bytes < 40 * MB

    @pytest.mark.slow
    def test_small_pieces_that_were_freed_before_count_again(self) -> None:
        def pieces() -> list[torch.Tensor]:
            return [torch.ones(16 << 10, dtype=torch.uint8) for _ in range(16000)]  # 250 MB

        pieces()
        with PeakMemory() as peak:
            pieces()
        assert 150 * MB < peak.bytes < 290 * MB  # what the allocator kept is not seen

    def test_it_is_measured_when_the_block_raises(self) -> None:
        peak = PeakMemory()
        with suppress(KeyError), peak:
            touch(32)
            raise KeyError
        assert peak.bytes > 30 * MB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_is_what_torch_allocated() -> None:
    place = torch.device("cuda")
    with PeakMemory(place) as peak:
        torch.ones(64 * MB, dtype=torch.uint8, device=place)
    assert 64 * MB <= peak.bytes < 70 * MB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
def test_what_a_process_holds() -> None:
    before = resident()
    held = touch(64)
    assert resident() > before + 60 * MB
    assert resident(os.getpid()) > before + 60 * MB
    assert resident(2**22 + 1) == 0  # of no process
    del held
