"""Messages over a boundary: what is packed on one side is what the other side unpacks."""

from __future__ import annotations

import torch

from halocline.plan import Stage
from halocline.runtime.boundary import Crossing, pack, packed_size, pieces, unpack


def test_numbers_behind_an_odd_count_of_bytes_are_unpacked() -> None:
    tensors = [torch.tensor([True, False, True]), torch.rand(3, 2, dtype=torch.float64), torch.arange(3)]
    crossings = [Crossing(tuple(t.shape), str(t.dtype).removeprefix("torch."), False) for t in tensors]
    parts = pieces(crossings, Stage((0, 1)), crossings, Stage((1, 2)), 0, 0, first=True)
    whole = [tuple((0, n) for n in t.shape) for t in tensors]
    message = pack(parts, tensors, whole)
    assert message.numel() == packed_size(parts, crossings) == 3 + 48 + 24
    found = [torch.zeros_like(t) for t in tensors]
    unpack(message, parts, crossings, found, whole)
    assert all(map(torch.equal, found, tensors))
