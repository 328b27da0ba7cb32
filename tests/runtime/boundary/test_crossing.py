"""A tensor at a boundary: its bytes and its order in memory."""

from __future__ import annotations

import torch

from halocline.runtime.boundary.crossing import Crossing


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
