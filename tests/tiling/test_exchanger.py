"""The exchangers: threads, real gloo processes, and none at all."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from halocline import tiling
from halocline.tiling.exchanger import ExchangeTimeout, NoCommunication, ProcessExchanger, ThreadExchanger
from harness.ranks import assert_close, image, on_processes, on_threads


def make() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*layers, nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()


def step(grid: tuple[int, int]) -> list[torch.Tensor]:
    net = make()
    out = net(tiling.tile(image((2, 3, 21, 19)), grid))
    tiling.backward(out.square().sum(), net)
    return [out.detach(), *(p.grad for p in net.parameters() if p.grad is not None), *net.buffers()]


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
def test_a_training_step_on_processes(grid: tuple[int, int]) -> None:
    net = make()
    out = net(image((2, 3, 21, 19)))
    out.square().sum().backward()
    expected = [out.detach(), *(p.grad for p in net.parameters()), *net.buffers()]
    for rank, actual in enumerate(on_processes(grid[0] * grid[1], step, grid)):
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, e, 1e-12, f"tensor {i} on rank {rank}")


def subgroup() -> tuple[int, float]:
    """A group of ranks 1 and 3: the tiles' ranks are not the global ones."""
    group = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        return 0, 0.0
    x = tiling.tile(image((1, 1, 6, 6)), (1, 2), group)
    y = torch.conv2d(x, torch.ones(1, 1, 3, 3, dtype=torch.float64), padding=1)
    return tiling.traffic(group).messages, float(y.full().sum())


def test_a_group_of_other_ranks() -> None:
    whole = torch.conv2d(image((1, 1, 6, 6)), torch.ones(1, 1, 3, 3, dtype=torch.float64), padding=1)
    results = on_processes(4, subgroup)
    assert [r[0] for r in results] == [0, 1, 0, 1]
    assert all(abs(r[1] - float(whole.sum())) < 1e-12 for r in (results[1], results[3]))


def dtypes() -> list[bool]:
    exchanger = tiling.tile(torch.zeros(1, 1, 2, 2), (1, 2)).spec.exchanger
    peer = 1 - exchanger.rank
    results = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool):
        mine = torch.full((3,), exchanger.rank + 1).to(dtype)
        got = torch.zeros(3, dtype=dtype)
        exchanger.start({peer: mine}, {peer: got})()
        results.append(torch.equal(got, torch.full((3,), peer + 1).to(dtype)))
    return results


def test_every_dtype_travels() -> None:
    assert all(all(r) for r in on_processes(2, dtypes))


def late() -> str:
    assert dist.group.WORLD is not None
    group = dist.new_group([0, 1])
    exchanger = ProcessExchanger(group, deadline=0.3)
    if exchanger.rank == 0:
        try:
            exchanger.start({}, {1: torch.zeros(1)})()
        except ExchangeTimeout as error:
            return str(error)
    return ""


def test_a_process_that_does_not_answer_is_named() -> None:
    message = on_processes(2, late)[0]
    assert "rank 0 waited up to 0.3 s for rank 1 of a team of 2" in message


def test_a_thread_that_does_not_answer_is_named() -> None:
    a, _ = ThreadExchanger.connect(2, deadline=0.05)
    with pytest.raises(ExchangeTimeout, match=r"rank 0 waited up to 0\.05 s for rank 1"):
        a.start({}, {1: torch.zeros(1)})()


def test_the_error_of_one_rank_ends_the_others() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        if exchanger.rank == 1:
            raise KeyError("mine")
        exchanger.all_reduce(torch.zeros(1))

    with pytest.raises(KeyError, match="mine"):
        on_threads(3, run)


def test_no_communication_counts_and_sends_nothing() -> None:
    exchanger = NoCommunication(0, 2)
    x = tiling.tile(torch.ones(1, 1, 4, 4), (1, 2), exchanger)
    y = torch.conv2d(x, torch.ones(1, 1, 3, 3), padding=1)
    assert y.local[0, 0, 1].tolist() == [6.0, 6.0]  # the halo is zero, as the class says
    assert exchanger.counter.messages == 1
