"""One clock for a device, that does not run apart from the host's."""

from __future__ import annotations

import time

import pytest
import torch

from halocline.runtime.marks import CudaMarks, marks_of


def test_a_device_has_one_clock() -> None:
    clock = marks_of(torch.device("cpu"))
    assert clock is marks_of(torch.device("cpu"))
    before = time.time()
    mark = clock.mark()
    assert clock.immediate and clock.happened(mark)
    assert before <= clock.seconds(mark) <= time.time()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_tells_when_it_did_what_by_the_clock_of_the_host() -> None:
    clock = CudaMarks(torch.device("cuda", 0))
    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        x @ x
    torch.cuda.synchronize()
    before = time.time()
    first = clock.mark()
    for _ in range(200):
        x @ x
    second = clock.mark()
    assert not clock.happened(second)
    clock._set()  # what has no work happens at once, whatever else the GPU does
    assert not clock.happened(second)
    clock.wait(second)
    after = time.time()
    assert before - 0.001 <= clock.seconds(first) < clock.seconds(second) <= after + 0.001
    assert clock.seconds(second) - clock.seconds(first) == pytest.approx(first.elapsed_time(second) / 1e3, rel=1e-3)
