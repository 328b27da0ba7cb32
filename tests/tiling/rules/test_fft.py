"""torch.fft on tiles, alone and in the spectral layers of GFNet, FNO, AFNO, FNet and LaMa (FFC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import UntiledOperation
from harness.ranks import assert_close, assert_exact, image, on_processes, on_threads

GRIDS: tuple[Any, ...] = ({"grid": (1, 3)}, {"grid": (2, 2)}, {"cuts": ((0, 6, 9), (0, 2, 3, 7))})
COMPLEX = "fft ifft irfft hfft".split()
REAL = "fft ifft rfft ihfft".split()


def complex_image(x: Tensor) -> Tensor:
    return torch.complex(x[:, :3], x[:, 3:])


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("dim", [-1, 2, 1, 0])
@pytest.mark.parametrize("name", sorted({*COMPLEX, *REAL}))
def test_a_transform_in_one_dim(name: str, dim: int, kwargs: Any) -> None:
    def both(x: Tensor) -> list[Tensor]:
        function = getattr(torch.fft, name)
        given = x if name in REAL else complex_image(x)
        return [function(given, dim=dim), function(given, 6, dim, "ortho"), function(given, n=10, dim=dim)]

    assert_exact(both, (2, 6, 9, 7), tiled=True, **kwargs)


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("name", sorted({*COMPLEX, *REAL}))
def test_a_transform_in_several_dims(name: str, kwargs: Any) -> None:
    def several(x: Tensor) -> list[Tensor]:
        two, many = getattr(torch.fft, name + "2"), getattr(torch.fft, name + "n")
        given = x if name in REAL else complex_image(x)
        return [
            two(given),
            two(given, (8, 5), norm="forward"),
            two(given, s=(8, 10), dim=(1, -1)),
            many(given, dim=(1, 2, 3)),
            many(given, s=(4, 6)),
            many(given, norm="ortho"),
        ]

    assert_exact(several, (2, 6, 9, 7), tiled=True, **kwargs)


@pytest.mark.parametrize("margin", [0, 1])
def test_sequences_volumes_lanes_and_channels_last(margin: int) -> None:
    assert_exact(lambda x: torch.fft.rfft(x), (2, 3, 11), grid=(4,), margin=margin)
    assert_exact(lambda x: torch.fft.rfft(x), (11,), grid=(3,), margin=margin)
    assert_exact(lambda x: torch.fft.rfftn(x, dim=(2, 3, 4)), (1, 2, 4, 5, 3), grid=(2, 2, 1), margin=margin)
    assert_exact(lambda x: torch.fft.rfft2(x), (2, 3, 6, 5), grid=(2, 1, 2), dims=(-4, -2, -1), margin=margin)
    assert_exact(lambda x: torch.fft.rfft2(x, dim=(1, 2)), (2, 6, 5, 3), grid=(2, 2), dims=(-3, -2), margin=margin)


def test_fewer_tiles_than_ranks_and_empty_tiles() -> None:
    def few(x: Tensor) -> Tensor:
        if isinstance(x, tiling.TileTensor):
            x = tiling.redistribute(x, grid=(1, 2))
        return torch.fft.irfft2(torch.fft.rfft2(x) * 2)

    assert_exact(few, (1, 2, 6, 8), grid=(2, 2))
    # One channel: one rank transforms, three have nothing to do. Two rows: not every tile has one.
    assert_exact(lambda x: torch.fft.rfft2(F.max_pool2d(x, 4)), (1, 1, 8, 12), grid=(4, 1))


@pytest.mark.parametrize("kwargs", GRIDS)
def test_shifts(kwargs: Any) -> None:
    def shifts(x: Tensor) -> list[Tensor]:
        y = torch.fft.fft2(x)
        return [torch.fft.fftshift(y), torch.fft.ifftshift(y, dim=-1), torch.fft.fftshift(x, dim=(-2, -1))]

    assert_exact(shifts, (2, 3, 9, 7), tiled=True, **kwargs)


def test_frames_of_sound() -> None:
    window = torch.hann_window(8, dtype=torch.float64)

    def there_and_back(x: Tensor) -> list[Tensor]:
        found = torch.stft(x, 8, 4, window=window, return_complex=True)
        return [found, x.stft(8, 4, window=window, return_complex=True).abs(), torch.istft(found, 8, 4, window=window)]

    assert_exact(there_and_back, (2, 32), grid=(2,), tiled=False)


def test_no_rank_holds_the_whole_image() -> None:
    largest = [0] * 4

    def transform(exchanger: tiling.ThreadExchanger) -> None:
        x = tiling.tile(image((1, 8, 16, 16)), (2, 2), exchanger)
        start = exchanger.start

        def watched(sends: Any, receives: Any) -> Any:
            largest[exchanger.rank] += sum(t.numel() for t in receives.values())
            return start(sends, receives)

        exchanger.start = watched  # type: ignore[method-assign]
        torch.fft.fft2(x)

    on_threads(4, transform)
    share = 8 * 16 * 16 // 4
    assert max(largest) == 2 * share * 3 // 4  # of the tile's own quarter nothing travels, there or back


def test_out_is_refused() -> None:
    x = tiling.tile(image((1, 2, 6, 8)), (1, 2), tiling.NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match="out="):
        torch.fft.fft(x, out=torch.zeros(1, 2, 6, 8, dtype=torch.complex128))


# ---------------------------------------------------------------------------------------------------- spectral layers


def complex_parameter(shape: tuple[int, ...], salt: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.view_as_complex(0.2 * image((*shape, 2), salt)))


class Spectral(nn.Module):
    """Keeps its complex parameters complex when the test asks for another dtype."""

    def to(self, dtype: torch.dtype) -> Spectral:  # type: ignore[override]
        return self.double()


class GlobalFilter(Spectral):
    """GFNet: pixels in the middle, channels last, one complex weight per frequency."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * image((9, 4, 6, 2)))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.permute(0, 2, 3, 1))
        _, a, b, _ = x.shape
        x = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        x = x * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(x, s=(a, b), dim=(1, 2), norm="ortho").permute(0, 3, 1, 2)


class FourierOperator(Spectral):
    """FNO: the lowest frequencies are mixed over channels by complex weights, the others are zero."""

    def __init__(self, likeness: bool) -> None:
        super().__init__()
        self.likeness = likeness
        self.first, self.second = complex_parameter((6, 6, 3, 2)), complex_parameter((6, 6, 3, 2), 1)
        self.skip = nn.Conv2d(6, 6, 1)

    def double(self) -> FourierOperator:
        self.skip.double()
        return self

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        found = torch.fft.rfft2(x)
        out = torch.zeros(batch, channels, height, width // 2 + 1, dtype=torch.complex128)
        if self.likeness:
            out = torch.zeros_like(found)
        out[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, :3, :2], self.first)
        out[:, :, -3:, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, -3:, :2], self.second)
        return F.gelu(torch.fft.irfft2(out, s=(height, width)) + self.skip(x))


class AdaptiveOperator(Spectral):
    """AFNO: a small network on blocks of channels, real and imaginary parts kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(image((2, 2, 3, 3))), nn.Parameter(image((2, 2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        batch, height, width, channels = x.shape
        found = torch.fft.rfft2(x, dim=(1, 2), norm="ortho").reshape(batch, height, width // 2 + 1, 2, 3)
        real = torch.zeros(found.shape, dtype=torch.float64)
        imag = torch.zeros(found.shape, dtype=torch.float64)
        kept = found[:, 1:8, :3]
        first, second = self.weight
        real[:, 1:8, :3] = F.relu(
            torch.einsum("...bi,bio->...bo", kept.real, first)
            - torch.einsum("...bi,bio->...bo", kept.imag, second)
            + self.bias[0]
        )
        imag[:, 1:8, :3] = F.relu(
            torch.einsum("...bi,bio->...bo", kept.imag, first)
            + torch.einsum("...bi,bio->...bo", kept.real, second)
            + self.bias[1]
        )
        y = F.softshrink(torch.stack([real, imag], dim=-1), 0.01)
        y = torch.view_as_complex(y).reshape(batch, height, width // 2 + 1, channels)
        return (torch.fft.irfft2(y, s=(height, width), dim=(1, 2), norm="ortho") + x).permute(0, 3, 1, 2)


class FourierUnit(Spectral):
    """LaMa's fast Fourier convolution: a convolution of the spectrum, whose parts are channels."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2 * channels, 2 * channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        found = torch.fft.rfftn(x, dim=(-2, -1), norm="ortho")
        found = torch.stack((found.real, found.imag), dim=-1).permute(0, 1, 4, 2, 3).contiguous()
        found = found.view((batch, -1, *found.size()[3:]))
        found = F.relu(self.norm(self.convolution(found)))
        found = found.view((batch, -1, 2, *found.size()[2:])).permute(0, 1, 3, 4, 2).contiguous()
        found = torch.complex(found[..., 0], found[..., 1])
        return torch.fft.irfftn(found, s=x.shape[-2:], dim=(-2, -1), norm="ortho")


class SpectralTransform(Spectral):
    """FFC's global branch with its local Fourier unit: quarters of the image become channels."""

    def __init__(self) -> None:
        super().__init__()
        self.unit, self.local = FourierUnit(4), FourierUnit(4)
        self.last = nn.Conv2d(4, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :4]
        channels, half = x.shape[1], x.shape[-1] // 2
        quarters = torch.cat(torch.split(x[:, : channels // 4, :half, :half], half // 2, dim=-2), dim=1)
        quarters = torch.cat(torch.split(quarters, half // 2, dim=-1), dim=1).contiguous()
        return self.last(
            x[..., :half, :half] + self.unit(x)[..., :half, :half] + self.local(quarters).repeat(1, 1, 2, 2)
        )


class TokenMixing(Spectral):
    """FNet: the real part of a transform over channels and pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return self.feed(torch.fft.fft2(torch.fft.fft(x, dim=-1), dim=(1, 2)).real)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GFNet": GlobalFilter,
    "FNO": lambda: FourierOperator(likeness=False),
    "FNO of zeros_like": lambda: FourierOperator(likeness=True),
    "AFNO": AdaptiveOperator,
    "FFC": FourierUnit,
    "FNet": TokenMixing,
}


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_spectral_layer_equals_one_device(name: str, kwargs: Any) -> None:
    torch.manual_seed(0)
    assert_exact(LAYERS[name](), (2, 6, 9, 7), tiled=True, **kwargs)


def test_a_local_fourier_unit_equals_one_device() -> None:
    torch.manual_seed(0)
    assert_exact(SpectralTransform(), (2, 6, 8, 8), grid=(2, 2))


def train_a_fourier_operator() -> None:
    """On a process: complex tiles, conjugates and complex gradients as messages."""

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        found = torch.fft.fft2(x.conj() if x.is_complex() else x).conj() * weight
        return (torch.fft.ifft2(found).conj().imag * image((1, 4, 6, 8), 3)).sum()

    one, tiled = (torch.view_as_complex(image((1, 4, 6, 8, 2))).requires_grad_() for _ in range(2))
    weights = [complex_parameter((4, 1, 1)) for _ in range(2)]
    expected = loss(one, weights[0])
    expected.backward()
    actual = loss(tiling.tile(tiled, (1, 2)), weights[1])
    tiling.backward(actual, [weights[1]])
    assert_close(actual.detach(), expected.detach(), 1e-12, "loss")
    assert_close(tiled.grad, one.grad, 1e-12, "gradient of the image")
    assert_close(weights[1].grad, weights[0].grad, 1e-12, "gradient of the weight")


def test_complex_messages_between_processes() -> None:
    on_processes(2, train_a_fourier_operator)
