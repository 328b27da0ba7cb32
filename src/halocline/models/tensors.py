"""The tensors of a module by name, for runs without data: what `torch.func.functional_call` puts others in place of."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those of a module that has two names under the first of them: functional_call exchanges
    tensors name by name, and puts none back that it has exchanged twice."""
    for path, part in module.named_modules():
        yield from part.named_parameters(path, recurse=False)
        yield from part.named_buffers(path, recurse=False)
