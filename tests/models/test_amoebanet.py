"""AmoebaNet-D: its size, its cells, any image size, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.amoebanet import NORMAL, REDUCTION, Cell, Convolutions, FactorizedReduce, amoebanet_d
from halocline.models.count import count
from harness.image_models import net, small

ROW = re.compile(r"^\| \((\d+), (\d+)\) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
TABLE = ROW.findall((Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("layers", "filters", "ten", "thousand"), TABLE)
def test_parameters_as_documented(layers: str, filters: str, ten: str, thousand: str) -> None:
    model = amoebanet_d(num_layers=int(layers), num_filters=int(filters))
    assert len(model.layers) == int(layers) + 6
    found = count(model, activations=False)
    assert f"{found.parameters:,}" == ten
    features = found.layers[-1].parameters // 10  # weights of a class, and its bias
    assert f"{found.parameters + 990 * features:,}" == thousand


def test_now_dls_size() -> None:
    assert ("18", "416", "312,433,690", "319,024,120") in TABLE and len(TABLE) == 6


@pytest.mark.parametrize(("layers", "filters", "millions"), [(18, 208, 82), (18, 416, 318), (18, 544, 542)])
def test_the_sizes_of_the_gpipe_paper(layers: int, filters: int, millions: int) -> None:
    model = amoebanet_d(num_layers=layers, num_filters=filters, num_classes=1000)
    assert count(model, activations=False).parameters == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize(("layers", "fix"), [(4, "use 3 or 6"), (17, "use 15 or 18"), (0, "use 3"), (2, "use 3")])
def test_another_number_of_cells_is_refused(layers: int, fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        amoebanet_d(num_layers=layers)


def test_too_few_filters_are_refused() -> None:
    with pytest.raises(ValueError, match="use 8 or more"):
        amoebanet_d(num_filters=7)


def straightforward(cell: Cell, now: Tensor, before: Tensor) -> Tensor:
    """The cell once more, each operation with a ReLU of its own."""
    states = [cell.now(F.relu(now)), before if cell.before is None else cell.before(F.relu(before))]
    operations = list(cell.operations)
    for pair in cell.genotype.sums:
        total: Tensor | int = 0
        for state, _ in pair:
            operation = operations.pop(0)
            given = states[state]
            total = total + operation(F.relu(given) if isinstance(operation, Convolutions) else given)
        states.append(total)  # type: ignore[arg-type]
    return torch.cat([states[i] for i in cell.genotype.output], 1)


@pytest.mark.parametrize("genotype", [NORMAL, REDUCTION], ids=["normal", "reduction"])
@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("size", [(6, 6), (7, 5)])
def test_a_cell(genotype: object, larger: bool, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    cell = Cell(genotype, 8, 12, 6, larger).double()  # type: ignore[arg-type]
    now = torch.randn(2, 12, *size, dtype=torch.float64, requires_grad=True)
    big = [2 * n - n % 2 for n in size] if larger else size
    before = torch.randn(2, 6, *big, dtype=torch.float64, requires_grad=True)
    output, skip = cell((now, before))
    assert skip is now
    halved = genotype is REDUCTION
    expected = [-(-n // 2) if halved else n for n in size]
    assert list(output.shape) == [2, 8 * len(genotype.output), *expected]  # type: ignore[attr-defined]
    other = straightforward(cell, now, before)
    torch.testing.assert_close(output, other, rtol=0, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(o.sin().sum(), (now, before)) for o in (output, other))):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_max_pooling_is_max_pooling() -> None:
    kinds = [type(op) for op in Cell(NORMAL, 8, 8, 8, False).operations]
    assert kinds.count(nn.MaxPool2d) == 2 and kinds.count(nn.AvgPool2d) == 1


@pytest.mark.parametrize("size", [(8, 8), (7, 8), (9, 5), (1, 3)])
def test_a_factorized_reduction_sees_the_shifted_pixels(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    module = FactorizedReduce(3, 6).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
    expected = torch.cat([module.even(x), module.odd(shifted)], 1)
    again = FactorizedReduce(3, 6).double()
    again.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x), again.norm(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(33, 1), (1, 40), (34, 47), (65, 32)])
def test_every_parameter_learns_at_any_image_size(size: tuple[int, int]) -> None:
    model = net(small("amoebanet-d"))
    logits = model(torch.randn(2, 3, *size, dtype=torch.float64))
    assert logits.shape == (2, 5)
    F.cross_entropy(logits, torch.tensor([1, 4])).backward()
    assert all(p.grad is not None for p in model.parameters())
