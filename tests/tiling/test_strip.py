"""Strips packed as rows, as on a GPU, on tensors in either memory format: exact, and each sum in one order."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import strip, window
from halocline.tiling.boxes import intersect, is_empty
from halocline.tiling.route import route
from harness.ranks import assert_exact


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strip, "PACKED_ON", ("cpu",))
    monkeypatch.setattr(window, "INDEXED_ON", ("cpu",))
    monkeypatch.setattr(window, "SMALL", 0)


class Formats(nn.Module):
    """A layer before which each rank brings its tile into a memory format of its own."""

    def __init__(self, layer: nn.Module, formats: list[torch.memory_format], policy: tiling.Policy) -> None:
        super().__init__()
        self.layer, self.formats, self.policy = layer, formats, policy

    def forward(self, x: Tensor) -> Tensor:
        rank = x.spec.exchanger.rank if isinstance(x, tiling.TileTensor) else 0
        with tiling.overlap(self.policy):
            out: Tensor = self.layer(x.contiguous(memory_format=self.formats[rank % len(self.formats)]))
        return out


LAST, FIRST = torch.channels_last, torch.contiguous_format


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_exact_in_every_memory_format(data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from([(1, 2), (3, 1), (2, 2), (3, 3)]))
    kernel = data.draw(st.integers(1, 5))
    stride = data.draw(st.integers(1, 2))
    layer: nn.Module
    if data.draw(st.booleans()):
        layer = nn.Conv2d(3, 4, kernel, stride, data.draw(st.integers(0, 2)))
    else:
        layer = nn.MaxPool2d(kernel, stride, data.draw(st.integers(0, kernel // 2)))
    formats = data.draw(st.sampled_from([[LAST], [LAST, FIRST], [FIRST, LAST, LAST]]))
    policy: tiling.Policy = data.draw(st.sampled_from(["never", "always"]))
    size = data.draw(st.integers(6, 14)), data.draw(st.integers(6, 14))
    assert_exact(Formats(layer, formats, policy), (data.draw(st.integers(1, 2)), 3, *size), grid=grid)


@pytest.mark.parametrize("formats", [[torch.channels_last_3d], [torch.channels_last_3d, FIRST]])
def test_volumes(formats: list[torch.memory_format]) -> None:
    assert_exact(Formats(nn.Conv3d(2, 3, 3, padding=1), formats, "never"), (2, 2, 6, 7, 8), grid=(2, 1, 2))


def test_strips_are_added_in_rounds_of_disjoint_ones() -> None:
    owned = tuple(((8 * i, 8 * i + 8), (8 * j, 8 * j + 8)) for i in range(3) for j in range(3))
    need = tuple(tuple((max(a - 2, 0), min(b + 2, 24)) for a, b in box) for box in owned)
    way = route(owned, owned[4], need, need[4], (-2, -1), 4)
    assert [s for strips in way.rounds for s in strips] == list(way.sends) and len(way.sends) == 8
    assert len(way.rounds) == 3
    for strips in way.rounds:
        for a, b in combinations(strips, 2):
            assert is_empty(intersect(intersect(owned[4], need[a.peer]), intersect(owned[4], need[b.peer])))
