"""Messages over a boundary: what is packed on one side is what the other side unpacks."""

from __future__ import annotations

import torch

from halocline.plan import Stage
from halocline.runtime.boundary.crossing import Crossing, pack, packed_size, pieces, unpack


def test_numbers_behind_an_odd_count_of_bytes_are_unpacked() -> None:
    tensors = [torch.tensor([True, False, True]), torch.rand(3, 2, dtype=torch.float64), torch.arange(3)]
    crossings = [Crossing(tuple(t.shape), str(t.dtype).removeprefix("torch."), False) for t in tensors]
    parts = pieces(crossings, Stage((0, 1)), crossings, Stage((1, 2)), 0, 0, first=True)
    whole = [tuple((0, n) for n in t.shape) for t in tensors]
    message = pack(parts, crossings, tensors, whole)
    assert message.numel() == packed_size(parts, crossings) == 3 + 48 + 24
    found = [torch.zeros_like(t) for t in tensors]
    unpack(message, parts, crossings, found, whole)
    assert all(map(torch.equal, found, tensors))


def test_a_tensor_arrives_lying_in_memory_as_it_left() -> None:
    image = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    crossing = Crossing(tuple(image.shape), "float32", True, order=(0, 2, 3, 1))
    box = tuple((0, n) for n in image.shape)
    arrived = crossing.from_bytes(crossing.as_bytes(image), box)
    assert torch.equal(arrived, image) and arrived.stride() == image.stride()
    assert crossing.as_bytes(image).data_ptr() == image.data_ptr()  # not copied
    assert crossing.empty(box, image.device).stride() == image.stride()
    part = tuple((0, 2) for _ in image.shape)
    assert torch.equal(crossing.from_bytes(crossing.as_bytes(image[:2, :2, :2, :2]), part), image[:2, :2, :2, :2])
