"""Messages over a boundary: what is packed on one side is what the other side unpacks."""

from __future__ import annotations

import torch

from halocline.runtime.boundary.crossing import Crossing
from halocline.runtime.boundary.message import StageMessage


def test_numbers_behind_an_odd_count_of_bytes_are_unpacked() -> None:
    tensors = [torch.tensor([True, False, True]), torch.rand(3, 2, dtype=torch.float64), torch.arange(3)]
    crossings = [Crossing(tuple(t.shape), str(t.dtype).removeprefix("torch."), False) for t in tensors]
    whole = [tuple((0, n) for n in t.shape) for t in tensors]
    message = StageMessage.of(list(enumerate(whole)), crossings, whole, range(3))
    packed = message.pack(tensors)
    assert packed.numel() == message.size == 3 + 48 + 24
    found = [torch.zeros_like(t) for t in tensors]
    message.unpack(packed, found)
    assert all(map(torch.equal, found, tensors))
    assert message.whole
    for view, tensor in zip(message.views(packed), tensors):
        assert view is not None and torch.equal(view, tensor)
