"""Linear layers and embeddings that start from a normal distribution of a given width, biases from zero.

Their first values are drawn once, by `reset_parameters`: a layer of a large model is not filled twice.
"""

from __future__ import annotations

from torch import nn

STD = 0.02
"""GPT-2's, BERT's and Bloom's width."""


class Linear(nn.Linear):
    """y = x W^T + b."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, std: float = STD) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table with a row for each word or position."""

    def __init__(self, rows: int, features: int, std: float = STD) -> None:
        self.std = std
        super().__init__(rows, features)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
