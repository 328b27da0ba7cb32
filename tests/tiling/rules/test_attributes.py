"""What shares memory with what it was made of, and what does not, as on one device: also on a tile of one pixel, whose
strides fit any order in memory, and for operators that happen to move nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact, image

SHAPE = (2, 4, 6, 4)
CUTS = {
    "even": [[0, 3, 6], [0, 2, 4]],
    "one row": [[0, 1, 6], [0, 4]],
    "one pixel": [[0, 5, 6], [0, 3, 4]],
    "an empty tile": [[0, 0, 6], [0, 4]],
}
LAST = torch.channels_last

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "contiguous, turned": lambda x: x.transpose(2, 3).contiguous(),
    "contiguous, pixels first": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=LAST),
    "channels last twice": lambda x: x.contiguous(memory_format=LAST).contiguous(memory_format=LAST),
    "to channels last": lambda x: x.to(memory_format=LAST),
    "to its own dtype": lambda x: x.to(torch.float64),
    "to another dtype": lambda x: x.to(torch.float32),
    "a copy": lambda x: x.to(torch.float64, copy=True),
    "type": lambda x: x.type(torch.float64),
    "dropout of nothing": lambda x: F.dropout(x, 0.0, True),
    "dropout of no channels": lambda x: F.dropout2d(x, 0.0, True),
    "alpha dropout of nothing": lambda x: F.alpha_dropout(x, 0.0, True),
    "no roll": lambda x: torch.roll(x, 0, 2),
    "a roll of all": lambda x: torch.roll(x, 6, 2),
    "no turn": lambda x: torch.rot90(x, 0, (2, 3)),
    "no flip": lambda x: x.flip(()),
    "no pad": lambda x: F.pad(x, (0, 0)),
    "no reflection": lambda x: F.pad(x, (0, 0, 0, 0), mode="reflect"),
    "no repetition": lambda x: F.pad(x, (0, 0, 0, 0), mode="replicate"),
    "no circle": lambda x: F.pad(x, (0, 0, 0, 0), mode="circular"),
    "one joined to nothing": lambda x: torch.cat([x], 2),
    "one stacked deep": lambda x: torch.dstack([x]),
    "no difference": lambda x: torch.diff(x, 0),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel shuffle by one": lambda x: F.pixel_shuffle(x, 1),
    "pixel unshuffle by one": lambda x: F.pixel_unshuffle(x, 1),
    "channel shuffle": lambda x: F.channel_shuffle(x, 2),
    "channel shuffle of one": lambda x: F.channel_shuffle(x, 1),
    "pooling of single pixels": lambda x: F.max_pool2d(x, 1),
    "the same size": lambda x: F.interpolate(x, size=x.shape[2:]),
    "all of it": lambda x: x.narrow(2, 0, 6),
    "itself": lambda x: +x,
    "a slice": lambda x: x[:, :, 1:].contiguous(),
    "a slice at a cut": lambda x: x[:, :, 3:].contiguous(),
    "a chunk": lambda x: x.chunk(2, 2)[1].contiguous(),
    "a slice, turned": lambda x: x[:, :, 3:].transpose(2, 3).contiguous(),
    "a slice with a new dim": lambda x: x[:, :, 3:].unsqueeze(1).contiguous(),
    "a slice of one channel": lambda x: x[:1, :1].contiguous()[:, :, 3:].contiguous(),
    "a slice to its own format": lambda x: x[:, :, 3:].to(memory_format=torch.contiguous_format),
    "a slice with a new dim in place": lambda x: x[:, :, 3:].unsqueeze_(1).contiguous(),
    "reshaped": lambda x: x.reshape(8, 6, 4),
    "reshaped, pixels first": lambda x: x.permute(0, 2, 3, 1).reshape(2, 6, 4, 2, 2),
    "samples and channels as one": lambda x: x.flatten(0, 1),
    "pixels as one": lambda x: x.flatten(2),
    "all as one": lambda x: x.flatten(),
    "a slice, reshaped": lambda x: x[:, :, 3:].reshape(8, 3, 4),
    "a slice, as lines": lambda x: x[:, :, 3:].reshape(2, 4, 12),
    "a slice, as samples": lambda x: x[:, :, 3:].reshape(2, -1),
    "a slice of columns, as lines": lambda x: x[..., 1:].flatten(2),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", MADE)
def test_what_is_written_to_a_result_is_seen_as_on_one_device(name: str, cuts: str, last: bool) -> None:
    def run(x: Tensor) -> list[Tensor]:
        x = torch.tanh(x.contiguous(memory_format=LAST) if last else x)
        y = MADE[name](x)
        y.mul_(2)
        return [x, y]

    assert_exact(run, SHAPE, cuts=CUTS[cuts], dims=(-2, -1), gradients=False, tolerance=1e-6)


def test_a_skip_around_an_activation_in_place() -> None:
    """Deep in a network, where tiles are single pixels."""

    def run(x: Tensor) -> Tensor:
        x = F.conv2d(x, image((4, 4, 3, 3)), padding=1)
        y = F.relu(x.permute(0, 2, 3, 1).contiguous(), inplace=True)
        z = F.leaky_relu(F.dropout(x, 0.0, True), 0.1, inplace=True)
        return x + y.permute(0, 3, 1, 2) + 2 * z

    assert_exact(run, (1, 4, 2, 2), grid=(2, 2))
