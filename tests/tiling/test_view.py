"""Views of a tile that have to be gathered share its memory as far as anyone can see: written to or written behind."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import UntiledOperation
from halocline.tiling.view import GatheredView
from harness.ranks import assert_exact, image, on_threads

SHAPE = (2, 3, 6, 9)


def written(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """A model that writes to its activations and goes on with them."""

    def model(x: Tensor) -> Tensor:
        y = x * 1.5
        write(y)
        return F.avg_pool2d(y * y, 3, 1, 1)

    return model


def in_rows(y: Tensor) -> None:
    rows = [y[:, :, i] for i in range(6)]
    for number, row in enumerate(rows):
        row.mul_(number + 2)


def set_items(y: Tensor) -> None:
    y.flatten(2)[..., 3:20] = 0


def add_to_corner(y: Tensor) -> None:
    corner = y[:, :, 0, -1]
    corner += corner.sum()


def chained(y: Tensor) -> None:
    y.flatten(2).transpose(1, 2)[:, ::4].mul_(3)


def into_out(y: Tensor) -> None:
    row = y[:, :, 2]
    torch.mul(row, 2, out=row)


def scattered(y: Tensor) -> None:
    y.view(2, -1).scatter_(1, torch.tensor([[0, 50], [9, 161]]), 7.0)


def of_a_slice(y: Tensor) -> None:
    y[:, :, 1:, 2:].select(3, 4).neg_()


def by_data(y: Tensor) -> None:
    y.flatten(2).data.mul_(1)


def by_a_function(y: Tensor) -> None:
    F.relu(y.view(2, 3, -1), inplace=True)


def from_tile(y: Tensor) -> None:
    y.view(2, 3, -1)[..., 9:].copy_(torch.ones(()))
    y[:, :, 0].copy_(y.mean(2))


WRITES = [
    lambda y: y[:, :, 0].mul_(3),
    lambda y: y.select(2, 3).zero_(),
    lambda y: y.view(2, -1).clamp_(0),
    lambda y: y.unfold(2, 3, 3).mul_(2),
    lambda y: y.view(-1, 3, 54).flatten(1).exp_(),
    lambda y: y.diagonal(0, 2, 3).fill_(1.5),
    lambda y: y[..., :1].squeeze(3).square_(),
    lambda y: y.ravel()[7:11].sub_(2),
    lambda y: y.reshape(6, 54)[1].neg_(),
    lambda y: y.unflatten(3, (3, 3))[..., 1].mul_(5),
    in_rows,
    set_items,
    add_to_corner,
    chained,
    scattered,
    of_a_slice,
    by_data,
    by_a_function,
    from_tile,
]


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("number", range(len(WRITES)))
def test_what_is_written_to_a_gathered_view_reaches_the_tile(number: int, margin: int) -> None:
    assert_exact(written(WRITES[number]), SHAPE, grid=(2, 2), margin=margin)
    assert_exact(written(WRITES[number]), SHAPE, cuts=[[0, 1, 6], [0, 1, 9]], margin=margin)


def each_sample(y: Tensor) -> None:
    for sample in y.flatten(2):
        sample[1].mul_(2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", [*WRITES, into_out, each_sample])
def test_so_it_does_without_gradients(write: Callable[[Tensor], Any], mode: Any) -> None:
    def model(x: Tensor) -> Tensor:
        with mode():
            return written(write)(x).clone()

    assert_exact(model, SHAPE, grid=(2, 2), gradients=False)


def test_what_is_written_to_the_tile_shows_in_a_view_taken_before() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        flat, row = y.flatten(2), y[:, :, 1]
        y.mul_(y.detach() + 1)
        shown = flat + 0
        row.zero_()
        return y, shown, flat * 2, row.clone()

    assert_exact(model, SHAPE, grid=(2, 2))


def test_in_inference_mode_such_a_view_is_refused() -> None:
    def on_tiles(exchanger: Any) -> None:
        with torch.inference_mode():
            y = tiling.tile(image(SHAPE), (2, 2), exchanger) * 1.5
            flat = y.flatten(2)
            y.mul_(2)
            with pytest.raises(UntiledOperation, match="was written to after this view was taken"):
                flat + 1

    on_threads(4, on_tiles)


def test_a_copy_is_no_view() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        copied = y.permute(0, 2, 3, 1).flatten(1)  # strides allow no view
        copied.zero_()
        chosen = y[:, :, [0, 2]]
        chosen.zero_()
        return y, copied, chosen

    assert_exact(model, SHAPE, grid=(2, 2))


def written_behind(look: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A tensor and what may be a view of it: one is written to, then the other."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        y, z = x * 1.5, x * 2.5
        first, second = look(y), look(z)
        y.mul_(2)
        second.mul_(3)
        return y, z, first * 1, second * 1

    return model


SOMETIMES_VIEWS = [
    lambda y: y[:, :, 1].reshape(-1),
    lambda y: y[:, :, 1].reshape(y.shape[0], -1),
    lambda y: y[..., 1].contiguous(),
    lambda y: y[:, :, 1].contiguous(),
    lambda y: y[:, :1, 1].contiguous(),
    lambda y: y[:, :, :, 1].flatten(1),
    lambda y: y[:, :2].reshape(y.shape[0], -1),
    lambda y: y[:1].reshape(1, -1),
    lambda y: y[:1][:, :2].flatten(2),
    lambda y: y.narrow(1, 1, 1).flatten(1),
    lambda y: y.diagonal(0, 2, 3).reshape(-1),
    lambda y: y.reshape(y.shape[0], -1)[:, 3:9].reshape(-1),
    lambda y: y.flatten(2).transpose(1, 2).contiguous(),
    lambda y: y.flatten(2)[0].to(torch.float64),
    lambda y: y.flatten(2, 2).flatten(1),
    lambda y: y.narrow(3, 0, 1).ravel(),
    lambda y: y.narrow(3, 0, 1).reshape(-1),
    lambda y: y[:1].ravel(),
]


@pytest.mark.parametrize("number", range(len(SOMETIMES_VIEWS)))
@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_a_copy_on_one_device_is_one_on_tiles(number: int, batch: int) -> None:
    """Whether these share memory depends on strides, which gaps between the pixels of a slice change."""
    model = written_behind(SOMETIMES_VIEWS[number])
    assert_exact(model, (batch, 3, 6, 9), grid=(2, 2))
    assert_exact(model, (batch, 3, 6, 9), cuts=[[0, 1, 6], [0, 1, 9]], margin=1)
    assert_exact(lambda x: model(x.contiguous(memory_format=torch.channels_last)), (batch, 3, 6, 9), grid=(1, 2))


def test_a_view_of_unknown_strides_is_not_used_with_its_tensor() -> None:
    def on_tiles(exchanger: Any) -> None:
        x = tiling.tile(image(SHAPE), (2, 2), exchanger)
        held = x.fetched(x.spec.grown(1).have).clone()
        y = held.cropped(x.spec)
        flat = y.reshape(2, -1)
        assert torch.equal(flat * 2, image(SHAPE).reshape(2, -1) * 2)
        with pytest.raises(UntiledOperation, match=r"torch.Tensor.reshape\(.*depends on strides"):
            flat.zero_()
        flat = y.reshape(2, -1)
        y.mul_(2)
        with pytest.raises(UntiledOperation, match="was written to since"):
            flat + 1

    on_threads(4, on_tiles)


def test_what_is_written_to_data_shows_in_views() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        flat, row = y.flatten(2), y[:, :, 1]
        before = flat + 0
        y[:, :, 1:].data.mul_(3)
        between = row + 0
        row.data.mul_(5)
        return y, flat * 1, row * 1, before, between

    assert_exact(model, SHAPE, grid=(2, 2))


def test_what_is_written_to_data_is_not_known_to_autograd() -> None:
    """What was saved for the backward is checked for changes that are counted; a change of data is not."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        saved = y.sin()
        y.flatten(2).data.mul_(1)
        return saved, y

    assert_exact(model, SHAPE, grid=(2, 2))


def test_a_view_looked_at_without_gradients_keeps_them() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        flat = y.flatten(2)
        y[..., 1] = 0.5
        with torch.no_grad():
            seen = flat.mean()
        return flat * 2, seen

    assert_exact(model, SHAPE, grid=(2, 2))


def test_a_view_stays_when_its_tensor_changes_its_dims() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.5
        flat = y.flatten(2)
        y.transpose_(2, 3)
        y.mul_(2)
        z = y.real
        z.unsqueeze_(0)
        return y, flat * 1

    assert_exact(model, (2, 3, 6, 6), grid=(2, 2))


class Head(nn.Module):
    """What meets a gathered view: a parameter, a custom function, a checkpoint, a tile that it is broadcast to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((54,), 0.5, dtype=torch.float64))
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True, dtype=torch.float64)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = x * 1.5
        tokens = y.flatten(2)
        attended = self.attention(*[tokens.transpose(1, 2)] * 3)[0]
        kept = torch.utils.checkpoint.checkpoint(torch.sin, tokens, use_reentrant=False)
        doubled = Double.apply(tokens)
        again = y * y[:, :, :1].squeeze(2).unsqueeze(2)
        return [tokens * self.scale, attended, kept, doubled, again, y.view(2, -1) + y.flatten(1)]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert type(x) is Tensor
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


def test_whatever_is_made_of_a_gathered_view_is_plain() -> None:
    assert_exact(Head(), SHAPE, grid=(2, 2))

    def on_tiles(exchanger: Any) -> None:
        tokens = tiling.tile(image(SHAPE), (2, 2), exchanger).flatten(2)
        assert type(tokens) is type(tokens.transpose(1, 2)) is GatheredView
        assert {type(t) for t in (tokens + 1, tokens.clone(), F.relu(tokens), torch.cat([tokens, tokens]))} == {Tensor}
        assert isinstance(tokens.shape, torch.Size) and len(tokens) == 2 and tokens.device.type == "cpu"

    on_threads(4, on_tiles)


def test_data_of_a_plain_tensor_is_no_tile() -> None:
    x = tiling.tile(image(SHAPE), (1, 1))
    plain = torch.zeros(SHAPE, dtype=torch.float64)
    with pytest.raises(UntiledOperation, match="data"):
        plain.data = x
    plain.data = image(SHAPE)
    assert torch.equal(plain, image(SHAPE))


class Writer(nn.Module):
    def __init__(self, write: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1, dtype=torch.float64) for _ in range(2))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 1.5
        self.write(y)
        return self.second(y * y)


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_so_it_does_on_lanes_and_under_fused_halos(number: int) -> None:
    model = nn.Sequential(*(Writer(WRITES[number]) for _ in range(2)))
    assert_exact(model, SHAPE, grid=(2, 2, 1), dims=(-4, -2, -1))
    assert_exact(tiling.fuse(model), SHAPE, grid=(2, 2))


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[:, :, 0].mul_(2),
        lambda y: y[..., :1, :1].clamp_(0),
        lambda y: y.narrow(3, 0, 1).add_(1),
        lambda y: y.select(2, 3).mul_(2),
        lambda y: operator.setitem(y, (slice(None), slice(None), 0), 1.0),
    ],
)
def test_every_rank_refuses_to_write_to_an_expanded_tensor(write: Any) -> None:
    with pytest.raises(RuntimeError, match="more than one element"):
        write(image((1, 1, 6, 6)).expand(1, 3, 6, 6))

    def run(exchanger: Any) -> str:
        y = tiling.tile(image((1, 1, 6, 6)), cuts=[[0, 1, 6], [0, 1, 6]], group=exchanger).expand(1, 3, 6, 6)
        with pytest.raises((RuntimeError, UntiledOperation)) as refusal:
            write(y)
        return str(refusal.value)

    for said in on_threads(4, run, deadline=10.0):
        assert "more than one element" in said or "is expanded" in said, said
