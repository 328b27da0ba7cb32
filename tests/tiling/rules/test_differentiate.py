"""What is plain has whole gradients: `loss.backward()`, hooks, `autograd.grad` and DDP see what one device has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from halocline import tiling
from halocline.tiling import UntiledOperation, window
from halocline.tiling.exchanger import ThreadExchanger
from harness.ranks import assert_close, assert_exact, image, on_processes, on_threads

SHAPE = (2, 2, 9, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.ones(1, 3, 1, 1))
        self.head = nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.single = nn.Parameter(torch.ones(1, dtype=torch.float32))

    def features(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x))) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3))) * self.single.double()


def make() -> Net:
    torch.manual_seed(0)
    net = Net()
    for module in (net.conv, net.norm, net.head):
        module.double()
    net.scale.data = net.scale.data.double()
    return net


def compare(
    train: Callable[[nn.Module, Tensor], Any], build: Callable[[], nn.Module] = make, tolerance: float = 1e-12
) -> None:
    """`train` does the same on a whole image and on tiles: gradients, parameters, buffers and what it returns agree."""
    reference = build()
    expected = train(reference, image(SHAPE))
    nets = [build() for _ in range(4)]

    def run(exchanger: ThreadExchanger) -> None:
        net = nets[exchanger.rank]
        result = train(net, tiling.tile(image(SHAPE), cuts=[[0, 5, 9], [0, 1, 8]], group=exchanger))
        for one, other in zip(expected if isinstance(expected, list) else [], result or ()):
            assert_close(other.full() if isinstance(other, tiling.TileTensor) else other, one, tolerance, "result")
        for (name, p), q in zip(net.named_parameters(), reference.parameters()):
            close = 1e-6 if p.dtype is torch.float32 else tolerance
            assert_close(p.grad, q.grad, close, f"gradient of {name} on rank {exchanger.rank}")
            assert_close(p.detach(), q.detach(), close, f"{name} on rank {exchanger.rank}")
        for (name, b), c in zip(net.named_buffers(), reference.buffers()):
            assert_close(b, c, tolerance, f"{name} on rank {exchanger.rank}")

    on_threads(4, run)


def test_gradients_are_added_to_what_was_there() -> None:
    def train(net: nn.Module, x: Tensor) -> None:
        for _ in range(2):
            net(x).square().sum().backward()

    compare(train)


def test_tiling_backward_is_loss_backward() -> None:
    def train(net: nn.Module, x: Tensor) -> None:
        loss = net(x).square().sum()
        tiling.backward(loss, net, retain_graph=True)
        tiling.backward(loss)

    compare(train)
    with pytest.raises(UntiledOperation, match="reduce the tile"):
        tiling.backward(tiling.tile(image(SHAPE), (1, 2), tiling.NoCommunication(0, 2)))


def test_hooks_of_parameters_see_one_devices_gradient() -> None:
    def train(net: nn.Module, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        for p in net.parameters():
            if p.requires_grad and p.dtype is torch.float64:
                p.register_hook(lambda grad: (seen.append(grad.norm()), (grad / grad.norm()).clamp(-0.3, 0.3))[1])
        net(x).square().sum().backward()
        return seen

    compare(train)


def test_an_optimizer_in_the_backward() -> None:
    def train(net: nn.Module, x: Tensor) -> None:
        def update(p: Tensor) -> None:
            assert p.grad is not None
            with torch.no_grad():
                p -= 0.1 * p.grad / p.grad.norm()
            p.grad = None

        for p in net.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            net(x).square().sum().backward()

    compare(train)


def test_hooks_behind_the_pooling() -> None:
    def train(net: nn.Module, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        net.head.register_full_backward_hook(
            lambda m, given, out: (seen.append(out[0]), (given[0].clamp(-0.1, 0.1),))[1]
        )
        pooled = net.features(x).amax((2, 3))  # type: ignore[operator]
        pooled.register_hook(lambda grad: (seen.append(grad), grad / grad.norm())[1])
        net.head(pooled).square().sum().backward()
        return seen

    compare(train)


def test_the_weight_of_a_loss_from_gradients_of_another() -> None:
    """As VQGAN weighs its adversarial loss, and GradNorm its tasks."""

    def train(net: nn.Module, x: Tensor) -> list[Tensor]:
        y = net.features(x)  # type: ignore[operator]
        first, second = y.square().mean(), net.head(y.mean((2, 3))).sin().sum()
        norms = [torch.autograd.grad(loss, net.conv.weight, retain_graph=True)[0].norm() for loss in (first, second)]
        (first + second * (norms[0] / norms[1]).detach()).backward()
        return norms

    compare(train)


def test_a_criterion_with_parameters_of_its_own() -> None:
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.logs = make(), nn.Parameter(image((3,)))

        def forward(self, x: Tensor) -> Tensor:
            y = self.net.features(x)
            per_pixel = (y - 1).square() * torch.exp(-self.logs).view(1, 3, 1, 1) + self.logs.view(3, 1, 1)
            return per_pixel.mean() + torch.exp(self.logs).sum()

    compare(lambda net, x: net(x).backward(), Weighed)


def test_a_parameter_used_on_tiles_and_on_plain_tensors() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.mix = nn.Linear(2, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(self.mix(x.movedim(1, -1)).mean((1, 2)))

    compare(lambda net, x: net(x).square().sum().backward(), Shared)


def test_complex_and_sparse_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.phase = nn.Parameter(torch.randn(1, 2, 1, 1, dtype=torch.complex128))
            self.table = nn.Embedding(5, 3, sparse=True).double()

        def forward(self, x: Tensor) -> Tensor:
            words = self.table((x.detach() * 10).long().remainder(5))
            return (x * self.phase).abs().square().mean() + (words * words).sum()

    def train(net: nn.Module, x: Tensor) -> list[Tensor]:
        net(x).backward()
        gradients = [net.phase.grad, net.table.weight.grad.to_dense()]  # type: ignore[union-attr]
        net.zero_grad()
        return [torch.view_as_real(gradients[0]), gradients[1]]

    compare(train, Odd)


@pytest.mark.parametrize("small", [0, 1 << 15])
@pytest.mark.parametrize("of", ["tile", "image"])
def test_gradients_of_gradients(of: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty on the gradient with respect to the image, as WGAN-GP's."""
    monkeypatch.setattr(window, "SMALL", small)
    convolutions = nn.Conv2d(2, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, 1, 1), nn.Tanh()
    critic = nn.Sequential(*convolutions, nn.AvgPool2d(2), nn.Conv2d(4, 1, 3, 1, 1)).double()

    def penalty(net: nn.Module, x: Tensor, leaf: Tensor) -> Tensor:
        out = net(x)
        grad = torch.autograd.grad(out.sum(), leaf, create_graph=True)[0]
        return (grad.flatten(1).norm(2, 1) - 1).square().mean() + out.square().mean()

    reference, whole = copy.deepcopy(critic), image((2, 2, 17, 16)).requires_grad_()
    expected = penalty(reference, whole, whole)
    expected.backward()

    def run(exchanger: ThreadExchanger) -> None:
        net, leaf = copy.deepcopy(critic), image((2, 2, 17, 16)).requires_grad_()
        x = tiling.tile(leaf, cuts=[[0, 9, 17], [0, 5, 16]], group=exchanger)
        loss = penalty(net, x, x if of == "tile" else leaf)
        loss.backward()
        assert_close(loss, expected, 1e-12, "penalty")
        for p, q in zip(net.parameters(), reference.parameters()):
            assert_close(p.grad, q.grad, 1e-12, "gradient")
        assert_close(leaf.grad, whole.grad, 1e-12, "gradient of the image")

    on_threads(4, run)


def test_gradients_of_gradients_on_empty_tiles_are_refused() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        x = tiling.tile(image((1, 1, 4, 4)), (2, 2), exchanger).requires_grad_()
        out = F.conv2d(x, image((1, 1, 4, 4)).requires_grad_())
        with pytest.raises(UntiledOperation, match="use fewer tiles"):
            torch.autograd.grad(out.sum(), x, create_graph=True)

    on_threads(4, run)


def test_the_gradient_of_a_tile() -> None:
    def saliency(net: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.requires_grad_()
        y = net.features(x)  # type: ignore[operator]
        first = torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0]
        second = torch.autograd.grad(y, [x, net.scale], torch.ones_like(y), retain_graph=True)
        assert torch.autograd.grad(y.sum(), [net.unused], allow_unused=True) == (None,)
        return [first, *second]

    compare(saliency)


def test_a_tile_as_the_gradient_of_a_plain_tensor() -> None:
    """As in the backward of a reversible layer whose halves gather; torch asks no rule about it."""

    def run(x: Tensor, weight: Tensor) -> list[Tensor]:
        plain = (x.flatten(2).softmax(-1) * weight).view(x.shape)
        (found,) = torch.autograd.grad(plain, weight, x * 2, retain_graph=True)
        leaf = plain.detach().requires_grad_()
        torch.autograd.backward([leaf.square()], [x.detach()])
        assert leaf.grad is not None
        return [plain, found, leaf.grad]

    assert_exact(run, (2, 3, 7, 5), grid=(2, 2), plain=[image((3, 1)).requires_grad_()])


def test_a_backward_of_tiles_whose_gradients_are_given() -> None:
    """By torch.autograd.backward itself; until torch 2.11 it asks no rule about them."""

    def run(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        torch.autograd.backward((leaf.sin(), leaf.square()), (x.detach(), 2 * x.detach()))
        assert leaf.grad is not None
        return leaf.grad * x

    assert_exact(run, (2, 3, 7, 5), grid=(2, 2))


def test_a_learned_image() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        learned, scale = nn.Parameter(image((1, 1, 4, 4))), nn.Parameter(torch.ones((), dtype=torch.float64))
        (tiling.tile(learned * scale, (1, 2), exchanger) ** 2).full().sum().backward()
        assert_close(learned.grad, 2 * learned.detach(), 1e-15, "gradient")
        assert_close(scale.grad, 2 * learned.detach().square().sum(), 1e-12, "gradient")

    on_threads(2, run)


def test_a_computed_piece_is_refused() -> None:
    scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="pass the whole image"):
        tiling.tile(torch.ones(1, 1, 4, 2) * scale, (1, 2), tiling.NoCommunication(0, 2), size=(4, 4))


def wrapped_in_ddp(mesh: tuple[int, int]) -> list[Tensor]:
    """Replicas x tiles: DDP averages over replicas, whose losses are means over their own samples."""
    replicas, tiles = mesh
    rank = dist.get_rank()
    teams = [dist.new_group([r * tiles + t for t in range(tiles)]) for r in range(replicas)]
    peers = [dist.new_group([r * tiles + t for r in range(replicas)]) for t in range(tiles)]
    replica, tile = divmod(rank, tiles)
    net = make()
    del net.unused
    model = DistributedDataParallel(net, process_group=peers[tile])
    for _ in range(2):
        x = tiling.tile(
            image((4, 2, 9, 8))[replica * 4 // replicas : (replica + 1) * 4 // replicas], (1, tiles), teams[replica]
        )
        model(x).square().mean().backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("mesh", [(2, 2), (1, 4), (4, 1)])
def test_ddp_around_tiles(mesh: tuple[int, int]) -> None:
    net = make()
    del net.unused
    for _ in range(2):
        for part in image((4, 2, 9, 8)).chunk(mesh[0]):
            (net(part).square().mean() / mesh[0]).backward()
    for gradients in on_processes(4, wrapped_in_ddp, mesh):
        for grad, p in zip(gradients, [p for p in net.parameters() if p.requires_grad], strict=True):
            assert_close(grad, p.grad, 1e-5 if grad.dtype is torch.float32 else 1e-12, "gradient")


def wrapped_in_fsdp() -> list[Tensor]:
    """Every rank has the whole gradient, so the mean that FSDP2 takes of them is that."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3, padding=1)).double()
    fully_shard(net)
    net(tiling.tile(image(SHAPE), (1, 2))).square().mean().backward()
    return [p.grad.full_tensor() for p in net.parameters()]  # type: ignore[union-attr]


def test_fsdp_around_tiles() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3, padding=1)).double()
    net(image(SHAPE)).square().mean().backward()
    for gradients in on_processes(2, wrapped_in_fsdp):
        for grad, p in zip(gradients, net.parameters(), strict=True):
            assert_close(grad, p.grad, 1e-12, "gradient")


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """A function that can be told of tiles."""
    if torch.overrides.has_torch_function((x, weight)):
        return torch.overrides.handle_torch_function(scaled, (x, weight), x, weight)
    return x * weight


@pytest.mark.parametrize("good", [True, False])
def test_a_rule_must_say_where_plain_tensors_meet_tiles(good: bool) -> None:
    @tiling.rule(scaled)
    def on_tiles(x: Any, weight: Tensor) -> tiling.TileTensor:
        used = tiling.for_tiles(weight, x.spec.exchanger) if good else weight
        return tiling.TileTensor.wrap(x.local * used, x.spec)

    plain = [image((1, 2, 1, 1)).requires_grad_()]
    if good:
        assert_exact(scaled, SHAPE, grid=(2, 2), plain=plain)
    else:
        with pytest.raises(UntiledOperation, match="'on_tiles' uses a plain tensor on `local`"):
            assert_exact(scaled, SHAPE, grid=(2, 2), plain=plain)


def test_a_rule_that_gathers_needs_to_say_nothing() -> None:
    @tiling.rule(scaled)
    def on_whole(x: Any, weight: Tensor) -> Tensor:
        return x.full() * weight

    assert_exact(scaled, SHAPE, grid=(2, 2), plain=[image((1, 2, 1, 1)).requires_grad_()])
