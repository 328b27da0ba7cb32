"""On a GPU, too, tiles draw what one device draws, in every memory format; the ranks run one after the other."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, True),
    "channels": lambda x: F.dropout2d(x, 0.4),
    "permuted": lambda x: F.dropout(x.permute(0, 2, 3, 1), 0.4).permute(0, 3, 1, 2),
    "rand": torch.rand_like,
    "randn": torch.randn_like,
    "randint": lambda x: torch.randint_like(x, 9),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_one_device(name: str, memory_format: torch.memory_format) -> None:
    for shape, grid in (((2, 8, 16, 12), (2, 2)), ((1, 4, 2, 2), (2, 2)), ((1, 3, 64, 64), (1, 4))):
        whole = torch.randn(shape, device="cuda").contiguous(memory_format=memory_format)
        torch.manual_seed(3)
        expected, following = DRAWS[name](whole), torch.rand(1, device="cuda")
        size = grid[0] * grid[1]
        for rank in range(size):
            torch.manual_seed(3)
            x = tiling.tile(whole, grid, NoCommunication(rank, size))
            (a, b), (c, d) = x.spec.box
            # Those of alpha dropout are scaled and shifted in another order of operations.
            torch.testing.assert_close(
                DRAWS[name](x).local,
                expected[..., a:b, c:d],
                atol=1e-6 * (name == "alpha"),
                rtol=0,
                msg=f"{shape} {rank}",
            )
            assert torch.equal(torch.rand(1, device="cuda"), following), f"rank {rank} is out of step"


@pytest.mark.parametrize("norm", [F.instance_norm, lambda x: F.group_norm(x, 2), lambda x: F.layer_norm(x, (4, 6, 8))])
def test_norms_lie_in_memory_as_on_one_device(norm: Callable[[Tensor], Tensor]) -> None:
    whole = torch.randn(2, 4, 6, 8, device="cuda").contiguous(memory_format=torch.channels_last)
    tile = norm(tiling.tile(whole, (2, 2), NoCommunication(0, 4)))
    assert tile.local.is_contiguous() == norm(whole).is_contiguous()
