"""Tiles know how the whole tensor lies in memory: after every operator as on one device, also where they are one pixel
wide. So random numbers, which fill memory in order, are those of one device.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import TileSpec, TileTensor, UntiledOperation
from halocline.tiling.plain import cut as part_of_rank
from halocline.tiling.strides import CHANNELS_LAST, memory_order, strides_in
from halocline.tiling.whole_order import whole_strides
from harness.operators import FUNCTIONAL
from harness.ranks import assert_close, image, in_turns, on_processes, on_threads, tensors

pytestmark = pytest.mark.filterwarnings("ignore")

ORDERS: dict[str, Callable[[int], tuple[int, ...]]] = {
    "contiguous": lambda ndim: tuple(range(ndim)),
    "channels last": lambda ndim: (0, *range(2, ndim), 1),
    "turned": lambda ndim: (*range(ndim - 2), ndim - 1, ndim - 2),
}
CUTS: dict[str, Callable[[int], list[int]]] = {
    "even": lambda n: [0, n // 2, n],
    "one pixel": lambda n: [0, 1, n],
}
"""With the second, one of four tiles has one pixel in both dims, and two have in one."""


def lying(shape: tuple[int, ...], order: tuple[int, ...], salt: int = 0) -> Tensor:
    """An image whose dims lie in memory in this order."""
    return torch.empty_strided(shape, strides_in(order, shape), dtype=torch.float64).copy_(image(shape, salt))


def seen(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The dims with more than one value, in their order in memory."""
    return sorted((d for d, n in enumerate(shape) if n > 1), key=lambda d: -strides[d])


def own_strides(x: TileTensor) -> tuple[int, ...]:
    """How the whole lies, as this rank knows without asking another: it may come to be the one that is asked."""
    agreed = whole_strides(x)
    narrow = sum(x.local.shape[d] < 2 for d in x.spec.dims) > 1
    # Which of two dims of one pixel lies outside is told by their strides alone, which a slice of channels upsets.
    return agreed if narrow or not x.local.numel() else strides_in(memory_order(x.local), tuple(x.shape))


def follows(call: Callable[..., Any], shapes: list[tuple[int, ...]], plain: list[Tensor], dims: int, order: str) -> str:
    """What is wrong with the order in memory of the results on tiles; nothing, if they are refused."""
    inputs = [lying(s, ORDERS[order](len(s)), i) for i, s in enumerate(shapes)]
    expected = tensors(call(*[x.clone() for x in inputs], *plain))
    for name, cut in CUTS.items():
        cuts = [[0, n] for n in shapes[0][-dims:-2]] + [cut(n) for n in shapes[0][-dims:][-2:]]

        def on_tile(exchanger: tiling.Exchanger, cuts: list[list[int]] = cuts) -> list[tuple[int, ...]]:
            results = tensors(call(*[tiling.tile(x, cuts=cuts, group=exchanger) for x in inputs], *plain))
            return [own_strides(r) if isinstance(r, TileTensor) else r.stride() for r in results]

        for strides in on_threads(prod(len(c) - 1 for c in cuts), on_tile):
            for found, whole in zip(strides, expected):
                likeness = torch.empty_like(whole)
                if seen(whole.shape, found) != seen(whole.shape, likeness.stride()):
                    return f"{name}: {tuple(whole.shape)} lies as {whole.stride()}, tiles say {found}"
    return ""


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_after_every_function(order: str, batch: int) -> None:
    """One sample leaves more strides than two that torch may take for others."""
    wrong = {}
    for name, case in FUNCTIONAL.items():
        if case.refused or case.random:
            continue
        shapes = [(min(s[0], batch), *s[1:]) for s in case.shapes]
        try:
            if batch == 1:
                case.call(*map(image, shapes), *[image(s, 8) for s in case.plain])
        except Exception:  # a function that wants as many samples of another argument
            continue
        try:
            what = follows(case.call, shapes, [image(s, 8) for s in case.plain], case.dims, order)
        except UntiledOperation:
            continue
        if what:
            wrong[name] = what
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def mixed(x: Tensor) -> Tensor:
    pixels = "xyz"[: x.ndim - 2]
    return torch.einsum(f"bc{pixels},oc->bo{pixels}", x, image((3, 4)))


SHAPES = {1: (2, 4, 16), 2: (2, 4, 10, 8), 3: (2, 4, 6, 6, 5)}
WAYS: dict[str, Callable[[Tensor], Any]] = {
    "joined": lambda x: [torch.cat([x, x], d) for d in (0, 1, -1)],
    "joined with another order": lambda x: [torch.cat([x, x.contiguous()], 1), torch.cat([x.contiguous(), x], -1)],
    "stacked": lambda x: [torch.stack([x, x], d) for d in (0, 1, 2)],
    "rolled": lambda x: [x.roll(2, -1), x.roll(1, 1), x.flip(-1), x.roll(0, -1), x.roll(x.shape[-1], -1)],
    "mixed": lambda x: [x + x.contiguous(), x.contiguous() * x, torch.where(x > 0, x, x.contiguous())],
    "broadcast": lambda x: [
        x.mean(1, keepdim=True) * x,
        x.amax(-1, keepdim=True) + x,
        x * image((4, *(1,) * (x.ndim - 2))),
    ],
    "parts": lambda x: [x[:, :2] + 1, x[..., 1:] * 2, x.chunk(2, 1)[1].exp(), x.narrow(-1, 0, 4) * 2],
    "reshaped": lambda x: [x.unsqueeze(1) * 2, x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2), x.squeeze() * 2],
    "tokens": lambda x: [x.movedim(1, -1).exp(), F.layer_norm(x.movedim(1, -1), (4,)).movedim(-1, 1) * 2],
    "products": lambda x: [torch.einsum("bc...->b...c".replace("...", "xyz"[: x.ndim - 2]), x) * 2, mixed(x)],
    "softmax": lambda x: [F.softmax(x, 1), F.softmax(x, -1)],
    "norms": lambda x: [F.group_norm(x, 2), F.batch_norm(x, None, None, training=True), F.instance_norm(x)],
    "plain": lambda x: [x + image(tuple(x.shape)), image(tuple(x.shape)) * x],
    "likenesses": lambda x: [torch.zeros_like(x), x.clone(), x.float(), x.detach()],
    "repeated": lambda x: [x.repeat(1, 2, *(1,) * (x.ndim - 2)), x[:, :1].expand(x.shape) + 1, x[:1].expand(x.shape)],
}


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
def test_after_what_models_do(order: str, dims: int) -> None:
    wrong = {name: follows(way, [SHAPES[dims]], [], dims, order) for name, way in WAYS.items()}
    assert not any(wrong.values()), wrong


ONE_PIXEL: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "activation": F.relu,
    "square": lambda x: x * x,
    "by channel": lambda x: x * image((1, 4, 1, 1)),
    "plain image": lambda x: x + image(tuple(x.shape)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2),
    "layer norm": lambda x: F.layer_norm(x, tuple(x.shape[1:])),
    "response norm": lambda x: F.local_response_norm(x, 2),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of channels": lambda x: F.dropout2d(x, 0.3),
    "alpha dropout": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "turned": lambda x: x.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2),
    "activation and resize": lambda x: F.interpolate(F.gelu(x), scale_factor=2),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_all_tiles_of_one_pixel_forgot_how_the_whole_lies(order: str, batch: int) -> None:
    """No rank can see it then; torch gives dims of size 1 any strides."""
    x = lying((batch, 4, 2, 2), ORDERS[order](4))
    for name, function in ONE_PIXEL.items():

        def drawn(x: Tensor, function: Callable[[Tensor], Tensor] = function) -> Tensor:
            return torch.randn_like(torch.tanh(function(x)))

        torch.manual_seed(3)
        expected = drawn(x)
        for cuts in ([[0, 1, 2], [0, 1, 2]], [[0, 2], [0, 1, 2]]):

            def on_tile(exchanger: tiling.Exchanger, cuts: list[list[int]] = cuts) -> Tensor:
                out = drawn(tiling.tile(x, cuts=cuts, group=exchanger))
                assert isinstance(out, TileTensor)
                return out.full()

            for found in in_turns(prod(len(c) - 1 for c in cuts), 3, on_tile):
                assert torch.equal(found, expected), name


def test_ranks_disagreed_whether_a_tensor_is_contiguous() -> None:
    """And went different ways where a model asks."""
    x = lying((2, 4, 3, 4), ORDERS["channels last"](4))

    def on_tile(exchanger: tiling.Exchanger) -> list[bool]:
        y = tiling.tile(x, cuts=[[0, 1, 3], [0, 1, 4]], group=exchanger)
        return [y.is_contiguous(), y.is_contiguous(memory_format=torch.channels_last), y[..., 1:].is_contiguous()]

    assert on_threads(4, on_tile) == [[False, True, False]] * 4


def test_a_sum_with_a_plain_image_of_one_channel() -> None:
    """One channel lies in both memory formats, of which torch takes the first."""
    x = torch.empty_strided((2, 1, 6, 3), (18, 1, 3, 1), dtype=torch.float64).copy_(image((2, 1, 6, 3)))
    plain = image((2, 1, 6, 3), 1)
    assert (x + plain).stride() == (18, 18, 3, 1) != x.stride(), "this is about such strides"

    def on_tile(exchanger: tiling.Exchanger) -> tuple[int, ...]:
        out = tiling.tile(x, cuts=[[0, 4, 6], [0, 1, 3]], group=exchanger) + plain
        assert isinstance(out, TileTensor)
        return whole_strides(out)

    assert on_threads(4, on_tile) == [(18, 18, 3, 1)] * 4


def test_a_dim_of_size_one_lies_where_its_stride_puts_it() -> None:
    for shape in ((2, 4, 1, 1), (1, 4, 1, 1), (1, 4, 1, 6), (2, 1, 3, 5)):
        x = torch.zeros(shape)
        assert memory_order(x) == (0, 1, 2, 3)
        assert memory_order(x.to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
        assert memory_order(x.permute(0, 2, 3, 1)) == (0, 3, 1, 2)


class Noisy(nn.Module):
    """Random numbers of every kind between layers in channels_last, down to tiles of one pixel."""

    def __init__(self, norm: Callable[[int], nn.Module], dims: int = 2) -> None:
        super().__init__()
        conv: type[nn.Module] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.layers = nn.ModuleList(conv(a, b, 3, padding=1) for a, b in ((3, 4), (4, 4), (4, 2)))
        self.norms = nn.ModuleList(norm(4) for _ in range(2))
        self.pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(conv(x))), 0.3)
            x = x + torch.randn_like(x) * torch.rand_like(x) + torch.randint_like(x, 3)
            x = F.dropout(x.movedim(1, -1), 0.2).movedim(-1, 1) + F.alpha_dropout(x, 0.1, True)
            x = F.dropout2d(x, 0.2) if x.ndim == 4 else x
            x = self.pool(x + torch.randn_like(x[:, :1]), 2)
        return self.layers[2](x + torch.rand_like(x.transpose(-1, 1)).transpose(-1, 1))


def noisy_on_a_process(norm: str, shape: tuple[int, ...], last: bool, cut: int) -> None:
    torch.manual_seed(0)
    build = {"batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(2, c), "instance": nn.InstanceNorm2d}[norm]
    if len(shape) == 5:
        build = nn.BatchNorm3d
    memory_format = CHANNELS_LAST[len(shape)] if last else torch.contiguous_format
    net = Noisy(build, len(shape) - 2).double().to(memory_format=memory_format)
    x = image(shape).contiguous(memory_format=memory_format)
    torch.manual_seed(7)
    expected = net(x)
    following = torch.rand(1)
    torch.manual_seed(7)
    cuts = [[0, n] for n in shape[2:-1]] + [[0, cut, shape[-1]]]
    out = net(tiling.tile(x, cuts=cuts)).full()
    assert torch.equal(torch.rand(1), following), "out of step"
    assert_close(out, expected, 1e-10, "output")


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 8, 12), (1, 3, 8, 8), (1, 3, 4, 6, 8)])
@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
def test_noise_is_that_of_one_device(norm: str, shape: tuple[int, ...], last: bool) -> None:
    if len(shape) == 5 and norm != "batch":
        return
    for cut in (shape[-1] // 2, 4, shape[-1] - 4):  # 4 pixels become one
        on_processes(2, noisy_on_a_process, norm, shape, last, cut)


def test_after_one_sample_that_was_a_sequence() -> None:
    """Its batch has a stride of no memory format, so that torch's group norm makes it contiguous."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "group norm": lambda y: F.group_norm(y, 2),
        "batch norm": lambda y: F.batch_norm(y, None, None, training=True),
        "instance norm": lambda y: F.instance_norm(y),
        "convolution": lambda y: F.conv2d(y, image((3, 8, 3, 3), 1), padding=1),
        "transposed": lambda y: F.conv_transpose2d(y, image((8, 3, 2, 2), 1), stride=2),
        "max pool": lambda y: F.max_pool2d(y, 2),
        "mean pool": lambda y: F.avg_pool2d(y, 2),
        "nearest": lambda y: F.interpolate(y, scale_factor=2),
        "bilinear": lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"),
        "reflect": lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"),
        "zeros": lambda y: F.pad(y, (1, 1)),
        "activation": F.relu,
        "join": lambda y: torch.cat([y, y], 1),
        "shuffle": lambda y: F.pixel_shuffle(y, 2),
    }
    x = image((1, 8, 12, 6))

    def residual(x: Tensor) -> Tensor:
        y = F.linear(x.flatten(2).transpose(1, 2), torch.eye(8, dtype=torch.float64))
        return y.transpose(1, 2).reshape(x.shape) + x

    def on_tile(exchanger: tiling.Exchanger, cuts: list[list[int]]) -> dict[str, tuple[int, ...]]:
        y = residual(tiling.tile(x, cuts=cuts, group=exchanger))
        made = {name: function(y) for name, function in functions.items()}
        return {name: whole_strides(m) for name, m in made.items() if isinstance(m, TileTensor)}

    y = residual(x)
    assert y.stride() == (8, 1, 48, 8), "this is about such strides"
    expected = {name: seen(m.shape, m.stride()) for name, f in functions.items() for m in (f(y),)}
    for cuts in ([[0, 7, 12], [0, 2, 6]], [[0, 1, 12], [0, 1, 6]]):
        for found in on_threads(4, lambda exchanger, cuts=cuts: on_tile(exchanger, cuts)):  # type: ignore[misc]
            orders = {name: seen(functions[name](y).shape, strides) for name, strides in found.items()}
            assert orders == expected


@pytest.mark.parametrize("first", [True, False])
def test_a_sum_with_a_plain_image_of_one_sample(first: bool) -> None:
    """Both are contiguous in a memory format, but for the stride of the batch, and the plain one is sliced."""
    x = torch.empty_strided((1, 8, 12, 6), (8, 1, 48, 8), dtype=torch.float64).copy_(image((1, 8, 12, 6)))
    plain = x.clone()
    expected = (plain + x).stride()
    assert plain.stride() == x.stride() != expected, "this is about such strides"

    def on_tile(exchanger: tiling.Exchanger) -> tuple[int, ...]:
        tile = tiling.tile(x, cuts=[[0, 7, 12], [0, 2, 6]], group=exchanger)
        out = plain + tile if first else tile * plain
        assert isinstance(out, TileTensor)
        return whole_strides(out)

    assert on_threads(4, on_tile) == [expected] * 4


def test_random_numbers_after_a_group_norm_of_one_sample() -> None:
    """As in the autoencoders of diffusion models, with attention and a batch of one image."""
    x = image((1, 8, 12, 6))

    def drawn(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        y = x.flatten(2).transpose(1, 2) @ torch.eye(8, dtype=torch.float64)
        y = y.transpose(1, 2).reshape(x.shape) + x
        y = y.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).reshape(x.shape) + y
        return torch.randn_like(F.conv2d(F.group_norm(y, 2), image((3, 8, 1, 1), 1)))

    expected = drawn(x)
    for rank in range(4):  # one after the other, as threads share a generator
        y = drawn(tiling.tile(x, (2, 2), tiling.NoCommunication(rank, 4)))
        assert isinstance(y, TileTensor)
        (a, b), (c, d) = y.spec.box
        assert torch.equal(y.local, expected[..., a:b, c:d])


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_gathered_lies_alike_on_every_rank(order: str) -> None:
    """Also on one that holds nothing, or one pixel, of it."""
    x = lying((1, 4, 3, 6), ORDERS[order](4))
    scale = image((1, 4, 3, 6))
    for cuts in ([[0, 0, 3], [0, 6]], [[0, 1, 3], [0, 5, 6]]):

        def on_tile(exchanger: tiling.Exchanger, cuts: list[list[int]] = cuts) -> list[tuple[int, ...]]:
            spec = TileSpec(tuple(map(tuple, cuts)), exchanger, (-2, -1))
            y = TileTensor.wrap(part_of_rank(x, spec), spec) * scale
            return [y.full().stride(), y[:, :, torch.tensor([2, 0, 1])].stride()]

        expected = x * scale
        wanted = [expected.stride(), expected[:, :, torch.tensor([2, 0, 1])].stride()]
        for found in on_threads(prod(len(c) - 1 for c in cuts), on_tile):
            assert [seen(x.shape, s) for s in found] == [seen(x.shape, s) for s in wanted]
