"""What modules say of how they may be split is true: parts made by it, by slicing alone, give the whole's output."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halocline.models.transformer import COLUMN, HEADS, ROW, SEQUENCE, VOCABULARY
from harness.transformers_small import NAMES, VOCAB, built, inputs, small, words


def part_of(module: nn.Module, part: int, parts: int) -> nn.Module:
    """A copy of a module that holds one of so many parts, in it and in all its children."""
    cut = copy.deepcopy(module)
    for holder in cut.modules():
        for name, how in getattr(holder, "split", {}).items():
            child = getattr(holder, name, None)
            if child is None:
                continue
            if how == HEADS:
                setattr(holder, name, child.chunk(parts)[part])
                continue
            dim = {COLUMN: int(isinstance(child, nn.Embedding)), ROW: 1, VOCABULARY: 0}[how]
            child.weight = nn.Parameter(child.weight.detach().chunk(parts, dim)[part].clone())
            if getattr(child, "bias", None) is not None:
                if how != ROW:
                    child.bias = nn.Parameter(child.bias.detach().chunk(parts)[part].clone())
                elif part:
                    child.bias = None
    return cut


def recorded(net: nn.Sequential, given: Any, kinds: set[str]) -> list[tuple[nn.Module, tuple[Any, ...], Tensor]]:
    """Each module of a class that splits, what it was given and what it gave."""
    found: list[tuple[nn.Module, tuple[Any, ...], Tensor]] = []
    for module in net.modules():
        if set(getattr(module, "split", {}).values()) & kinds:
            module.register_forward_hook(lambda m, args, out: found.append((m, args, out)))
    net(given)
    for module in net.modules():
        module._forward_hooks.clear()
    return found


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", [*NAMES, "gated t5"])
def test_holders_of_some_heads_and_features_add_up(name: str, parts: int) -> None:
    model = small("t5-small", activation="gated-gelu") if name == "gated t5" else small(name)
    found = recorded(built(model), inputs(model, words()), {ROW})
    assert len(found) >= 4
    for module, args, out in found:
        with torch.no_grad():
            total = sum(part_of(module, part, parts)(*args) for part in range(parts))
        assert torch.allclose(total, out, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_holders_of_some_words_add_up(name: str) -> None:
    model = small(name)
    net, (first, second) = built(model), (0, 19)
    table, head = net[0], net[-1]
    parts = [part_of(head, part, 2) for part in (0, 1)]
    given = torch.randn(2, 5, 24, dtype=torch.float64)
    state = (given, given) if name.startswith("t5") else given
    assert torch.allclose(torch.cat([part(state) for part in parts], -1), head(state), rtol=1e-12)
    rows = [part_of(table, part, 2).tokens.weight for part in (0, 1)]
    assert [len(r) for r in rows] == [second - first, VOCAB - second]
    assert torch.equal(torch.cat(rows), table.tokens.weight)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_split_exists(name: str) -> None:
    known = {COLUMN, ROW, VOCABULARY, HEADS, SEQUENCE}
    for module in built(small(name)).modules():
        for child, how in getattr(module, "split", {}).items():
            assert hasattr(module, child) and how in known
