"""The words in which a transformer's modules say how their weights may be divided by heads, features or words.

A module's class carries `split`, from the name of a direct child (or buffer) to one of these words; what it does not
name every holder has whole. Plain data: nothing here knows who divides, or among how many.

    class SelfAttention(nn.Module):
        split: ClassVar[dict[str, str]] = {"qkv": COLUMN, "out": ROW}

A child that is None (a gate that a model does without) is passed over.
Modules take the number of heads from the tensors they see, so that a holder of some of the heads runs the same code.
"""

from __future__ import annotations

COLUMN = "column"
"""A Linear's output features, bias included; of an Embedding the features of each row. Consecutive features belong to
the same head, so any cut at whole heads is a plain slice."""
ROW = "row"
"""A Linear's input features; holders' outputs are summed and the bias is added once."""
VOCABULARY = "vocabulary"
"""An Embedding's rows, or the output features of the Linear that makes logits, bias included: one per word."""
HEADS = "heads"
"""A buffer with one entry per head, along its first dim."""
SEQUENCE = "sequence"
"""A norm of a block that sees each token alone, as does all else in the block but for the children that are divided by
the words above: between those, a holder may have some of the tokens."""
