"""TileTensor behaves as the whole tensor, and what has no rule is refused, never computed on one tile."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline import tiling
from halocline.tiling import TileTensor, UntiledOperation
from halocline.tiling.exchanger import NoCommunication
from harness.ranks import assert_close, assert_exact, image, on_threads


def one_tile(shape: tuple[int, ...] = (2, 3, 8, 6), grid: tuple[int, ...] = (1, 2), rank: int = 0) -> TileTensor:
    """A tile that never speaks to its peers: enough to ask what it is."""
    return tiling.tile(torch.zeros(shape), grid, NoCommunication(rank, 2))


def test_it_describes_the_whole_tensor() -> None:
    x = one_tile()
    assert x.shape == (2, 3, 8, 6) and x.size() == x.shape and x.size(-1) == 6 and len(x) == 2
    assert x.numel() == torch.numel(x) == 2 * 3 * 8 * 6 and x.ndim == x.dim() == 4
    assert x.local.shape == (2, 3, 8, 3) and type(x.local) is Tensor
    assert x.dtype is torch.float32 and x.device.type == "cpu" and not x.is_cuda and x.is_floating_point()
    assert x.shape[2:] == (8, 6) and tuple(x.spec.box) == ((0, 8), (0, 3))
    assert repr(x) == (
        "TileTensor(shape=(2, 3, 8, 6), rank 0 of 2 owns [0:8, 0:3], dims=(-2, -1), dtype=torch.float32, device=cpu)"
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: bool(x),
        lambda x: float(x),
        lambda x: torch.linalg.svd(x),
        lambda x: x.storage(),
        lambda x: torch.add(x, x, out=x),
        lambda x: torch.equal(x, x),
        lambda x: x.backward(),
        lambda x: x.data_ptr(),
        lambda x: x.stride(),
    ],
)
def test_values_of_one_tile_are_never_given_for_the_whole(read: object) -> None:
    with pytest.raises(UntiledOperation):
        read(one_tile())  # type: ignore[operator]


def test_a_refusal_names_operator_module_shapes_and_the_way_out() -> None:
    class Strange(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.matrix_exp(x)

    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Identity(), Strange()))
    with pytest.raises(UntiledOperation) as caught:
        net(one_tile())
    message = str(caught.value)
    assert "torch.matrix_exp" in message and "1.1 (Strange)" in message
    assert "tile of [2, 3, 8, 6] holding [2, 3, 8, 3]" in message
    assert "@halocline.tiling.rule(torch.matrix_exp)" in message


def test_a_user_can_register_a_rule() -> None:
    def own_function(x: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(own_function, (x,), x)
        return x * 2

    with pytest.raises(UntiledOperation, match="own_function"):
        own_function(one_tile())

    @tiling.rule(own_function)
    def on_tiles(x: TileTensor) -> TileTensor:
        return TileTensor.wrap(own_function(x.local), x.spec)

    assert_exact(own_function, (1, 2, 5, 7), grid=(2, 2))


UNARY = [
    F.relu,
    F.gelu,
    F.silu,
    torch.sigmoid,
    torch.exp,
    lambda x: x.abs().sqrt(),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.hardtanh(x, -0.5, 0.5),
    lambda x: F.relu(x, inplace=True),
    lambda x: x.mul_(2.0).add_(1.0).relu_(),
    lambda x: x.clamp(min=0.1),
    lambda x: -x,
    lambda x: x.double().contiguous().clone(),
    lambda x: 2 / (x * x + 1) - 3,
    lambda x: 1 - x**2,
    lambda x: (x > 0) * x,
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3], dtype=x.dtype)),
    lambda x: x.to(torch.zeros(3, dtype=torch.float64)).type_as(x),
    lambda x: x + image((3, 1, 1)) * image((1, 3, 7, 1)) + image((7, 9)) + image((9,)),
    lambda x: x + x.mean((2, 3), keepdim=True) * x.sum((-1, -2), keepdim=True),
    lambda x: x.mean(1, keepdim=True) + x,
    lambda x: x.sum(1),
    lambda x: x.sum(0).sum(0) * 2,
    lambda x: x.mean(),
    lambda x: x.mean(-1),
    lambda x: x.sum((0, 2, 3)),
    lambda x: torch.lerp(x, x * 2, 0.3),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(UNARY)))
def test_pixelwise_and_sums(number: int, margin: int) -> None:
    assert_exact(UNARY[number], (2, 3, 7, 9), grid=(2, 2), margin=margin)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


BINARY = [
    lambda x, y: x + y,
    lambda x, y: x.add_(y),
    lambda x, y: torch.maximum(x, y) / (y * y + 1),
    lambda x, y: F.conv2d(x, ones(3, 3, 3, 3), padding=1) * y,
    lambda x, y: x.mul_(F.conv2d(y, ones(3, 3, 3, 3), padding=1)),
    lambda x, y: torch.where(x > y, x, y),
    # A convolution without padding moves the cuts; added to its input, one of the two must move again.
    lambda x, y: F.conv2d(F.conv2d(x, ones(3, 3, 5, 5)), ones(3, 3, 1, 1), padding=2) + y,
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(BINARY)))
def test_two_tiles(number: int, margin: int) -> None:
    assert_exact(BINARY[number], [(2, 3, 7, 9), (2, 3, 7, 9)], grid=(2, 2), margin=margin)


INTO_PLAIN = [
    lambda total, x: total.add_(x, alpha=2),
    lambda total, x: total.copy_(x),
    lambda total, x: total[:, :, 1:3].copy_(x[:, :, 4:6]),
    lambda total, x: total[0].__iadd__(x.sum(0)),
    lambda total, x: total.addcmul_(x, x[:, :1]).masked_fill_(x > 0.5, 2.0),
    lambda total, x: total.lerp_(end=x, weight=0.3),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(INTO_PLAIN)))
def test_a_tile_written_into_a_plain_tensor(number: int, margin: int) -> None:
    """As padding and sums over windows by hand do: the plain tensor stays whole."""

    def run(x: Tensor, start: Tensor) -> Tensor:
        total = start * 1
        INTO_PLAIN[number](total, x)
        return total

    assert_exact(run, (2, 3, 7, 9), grid=(2, 2), margin=margin, plain=[image((2, 3, 7, 9)).requires_grad_()])


def test_a_plain_parameter_of_the_whole_size_gets_its_gradient() -> None:
    embedding = image((3, 7, 9)).requires_grad_()
    gate = image((1, 3, 1, 1)).requires_grad_()
    assert_exact(lambda x, e, g: (x + e) * g, (2, 3, 7, 9), grid=(2, 2), margin=1, plain=[embedding, gate])


def test_wrong_sizes_are_refused_with_both() -> None:
    with pytest.raises(ValueError, match=r"\(3, 8, 5\) does not broadcast .* \(8, 6\)"):
        one_tile() + torch.zeros(3, 8, 5)


def test_module_hooks_do_not_lose_the_tile() -> None:
    conv = nn.Conv2d(3, 2, 3, padding=1)
    seen = []
    conv.register_forward_hook(lambda module, args, out: seen.append(out))
    conv(one_tile())
    assert isinstance(seen[0], TileTensor)


class Block(nn.Module):
    def __init__(self, given: int, out: int, stride: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(given, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.checkpointed = checkpointed

    def body(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        out += self.skip(x)
        return F.relu(out)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)


def resnet(checkpointed: bool = False) -> nn.Module:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks = [Block(8, 8, 1, checkpointed), Block(8, 16, 2, checkpointed), Block(16, 16, 2, checkpointed)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (1, 3), (2, 2)])
def test_a_residual_network_with_batch_norm(grid: tuple[int, int]) -> None:
    assert_exact(resnet(), (2, 3, 49, 43), grid=grid, tiled=False)
    assert_exact(resnet().eval(), (2, 3, 49, 43), grid=grid)


def test_a_residual_network_on_uneven_tiles() -> None:
    assert_exact(resnet(), (2, 3, 49, 43), cuts=[[0, 11, 49], [0, 30, 43]])


def test_activation_checkpointing() -> None:
    assert_exact(resnet(checkpointed=True), (2, 3, 49, 43), grid=(2, 2))


@pytest.mark.usefixtures("without_mkldnn")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    assert_exact(net, (2, 3, 12, 13), grid=(2, 2), dtype=dtype, tolerance=tolerance)


@pytest.mark.usefixtures("without_mkldnn")
def test_autocast_casts_as_on_one_device() -> None:
    nets = [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))]
    nets += [copy.deepcopy(nets[0]) for _ in range(4)]
    x = image((2, 3, 12, 13), dtype=torch.float32)

    def run(net: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    def on_tile(exchanger: tiling.Exchanger) -> None:
        net = nets[1 + exchanger.rank]
        full = run(net, tiling.tile(x, (2, 2), exchanger)).full()
        assert_close(full, expected, 3e-2, "output")
        tiling.backward(full.float().square().mean(), net, exchanger)
        for p, q in zip(net.parameters(), nets[0].parameters()):
            assert_close(p.grad, q.grad, 3e-2, "gradient")

    expected = run(nets[0], x)
    assert expected.dtype is torch.bfloat16
    expected.float().square().mean().backward()
    on_threads(4, on_tile)


@pytest.mark.parametrize("assigned", [False, True])
def test_a_tile_that_is_made_a_leaf(assigned: bool) -> None:
    """`requires_grad_` on the tile itself, as an adversarial attack or a saliency map does."""
    weight = image((2, 3, 3, 3))
    x = image((1, 3, 8, 8)).requires_grad_()
    F.conv2d(x, weight, padding=1).square().sum().backward()

    def run(exchanger: tiling.Exchanger) -> None:
        t = tiling.tile(image((1, 3, 8, 8)), (2, 2), exchanger)
        if assigned:
            t.requires_grad = True
        else:
            t.requires_grad_()
        assert t.requires_grad and t.is_leaf and t.grad is None
        F.conv2d(t, weight, padding=1).full().square().sum().backward()
        assert isinstance(t.grad, TileTensor)
        assert_close(t.grad.full(), x.grad, 1e-12, "gradient")
        with pytest.raises(ValueError, match="give None, or a tile cut alike"):
            t.grad = torch.zeros(1, 3, 8, 8)
        t.grad = None
        assert t.grad is None and t.local.grad is None

    on_threads(4, run)


def test_prelu_of_one_weight_is_of_each_pixel_alone() -> None:
    assert_exact(torch.nn.PReLU(), (3, 6, 7), grid=(2, 2))
    assert_exact(torch.nn.PReLU(), (6, 7), grid=(2, 2))


def test_a_tile_is_not_none() -> None:
    x = tiling.tile(image((2, 3, 4, 6)), (1, 2), NoCommunication(0, 2))
    assert (x == None, x != None, None == x, x == "a", x in [None]) == (False, True, False, False, False)  # noqa: E711
    with pytest.raises(TypeError, match="unsupported operand"):
        x + None


def test_numbers_shifted_by_tiles() -> None:
    def shifts(x: Tensor) -> list[Tensor]:
        return [2 << x.abs().long(), 64 >> x.abs().long(), x.long() << 1]

    assert_exact(shifts, (2, 3, 4, 6), grid=(2, 2), gradients=False)


def test_an_operation_is_refused_by_its_public_name() -> None:
    x = tiling.tile(image((2, 3, 4, 6)), (1, 2), NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match=r"^torch\.linalg\.svdvals\(.*rule\(torch\.linalg\.svdvals\)$"):
        torch.linalg.svdvals(x)
    with pytest.raises(UntiledOperation, match=r"^torch\.nn\.functional\.one_hot\("):
        F.one_hot(x.long())
