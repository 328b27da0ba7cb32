"""The part of a transformer block that sees each token alone: up to a wider layer, an activation, and down again."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from halocline.models.initial import STD, Linear
from halocline.models.split import COLUMN, ROW


class FeedForward(nn.Module):
    """down(activation(up(x))), or with `gated` down(activation(gate(x)) * up(x))."""

    split: ClassVar[dict[str, str]] = {"gate": COLUMN, "up": COLUMN, "down": ROW}

    def __init__(
        self,
        hidden: int,
        ff: int,
        activation: nn.Module,
        *,
        bias: bool = True,
        gated: bool = False,
        dropout: float = 0.0,
        std: float = STD,
        down_std: float = STD,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden, ff, bias, std) if gated else None
        self.up = Linear(hidden, ff, bias, std)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.down = Linear(ff, hidden, bias, down_std)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(wide))
