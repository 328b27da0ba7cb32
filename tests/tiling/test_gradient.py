"""tiling.backward leaves on every rank the gradients that one device would have."""

import torch
from ranks import assert_close, image, on_threads
from torch import nn

from halocline import tiling
from halocline.tiling.exchanger import ThreadExchanger


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(2, 1)
        self.unused = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.single = nn.Parameter(torch.ones(1, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).mean((2, 3))) * self.single.double()


def make() -> Net:
    torch.manual_seed(0)
    net = Net()
    net.conv.double()
    net.head.double()
    return net


def test_gradients_are_added_to_what_was_there() -> None:
    reference = make()
    for _ in range(2):
        reference(image((2, 2, 6, 6))).sum().backward()

    def run(exchanger: ThreadExchanger) -> None:
        net = nets[exchanger.rank]
        for step in range(2):
            tiling.traffic(exchanger).reset()
            loss = net(tiling.tile(image((2, 2, 6, 6)), (2, 2), exchanger)).sum()
            tiling.backward(loss, net, exchanger)
            # The mean and its backward, and one bucket for each of two dtypes.
            assert tiling.traffic(exchanger).reductions == 4, step
        for (name, p), expected in zip(net.named_parameters(), reference.parameters()):
            assert_close(p.grad, expected.grad, 1e-6 if p.dtype is torch.float32 else 1e-12, name)
        assert net.unused.grad is None and net.frozen.grad is None

    nets = [make() for _ in range(4)]
    on_threads(4, run)


def test_a_parameter_that_one_rank_did_not_use() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        used = nn.Parameter(torch.ones(2))
        loss = (used if exchanger.rank == 1 else torch.ones(2, requires_grad=True)).sum()
        tiling.backward(loss, [used], exchanger)
        assert used.grad is not None and torch.equal(used.grad, torch.full((2,), 0.5))

    on_threads(2, run)


def test_a_learned_image_is_summed_like_any_parameter() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        learned = nn.Parameter(image((1, 1, 4, 4)))
        tiling.backward((tiling.tile(learned, (1, 2), exchanger) ** 2).full().sum(), [learned], exchanger)
        assert learned.grad is not None
        assert_close(learned.grad, 2 * learned.detach(), 1e-15, "gradient")

    on_threads(2, run)


def test_an_image_that_was_computed_is_not_counted_twice() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        x = tiling.tile(image((1, 1, 4, 4)) * scale, (1, 2), exchanger)
        tiling.backward((x**2).full().sum(), [scale], exchanger)
        assert scale.grad is not None
        assert_close(scale.grad, 2 * image((1, 1, 4, 4)).square().sum(), 1e-12, "gradient")

    on_threads(2, run)
