"""BERT's names and settings in Hugging Face's files, with the head for masked words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.bert import Bert
from halocline.models.hf.family import Config, Family, Weight, head_by_head, module, plain, require

TABLE, HEAD = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BIAS, OWN_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
"""The head's bias, and how it is called beside a head of its own; older files know only the first name."""
SETTINGS = {
    "layers": ("num_hidden_layers", 12),
    "hidden": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "vocab": ("vocab_size", 30522),
    "positions": ("max_position_embeddings", 512),
    "types": ("type_vocab_size", 2),
    "ff": ("intermediate_size", 3072),
    "eps": ("layer_norm_eps", 1e-12),
}


def options(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    require(config, "hidden_act", ("gelu",))
    require(config, "position_embedding_type", ("absolute", None))
    require(config, "is_decoder", (False,))
    require(config, "add_cross_attention", (False,))
    padding = config.get("pad_token_id", 0)
    # A table counts it from its end if below 0.
    return {"seq": found["positions"], "padding": -1 if padding is None else padding % found["vocab"]}


def config(a: Bert) -> dict[str, Any]:
    return {
        "architectures": ["BertForMaskedLM"],
        "hidden_act": "gelu",
        "hidden_dropout_prob": a.dropout,
        "attention_probs_dropout_prob": a.attention_dropout,
        "pad_token_id": a.padding if a.padding >= 0 else None,
    }


def weights(a: Bert) -> Iterator[Weight]:
    yield plain("0.tokens.weight", TABLE)
    yield plain("0.positions.weight", "bert.embeddings.position_embeddings.weight")
    yield plain("0.types.weight", "bert.embeddings.token_type_embeddings.weight")
    yield from module("0.norm", "bert.embeddings.LayerNorm")
    for number in range(a.layers):
        ours, theirs = f"{number + 1}", f"bert.encoder.layer.{number}"
        for part in ("weight", "bias"):
            there = [f"{theirs}.attention.self.{what}.{part}" for what in ("query", "key", "value")]
            yield head_by_head(f"{ours}.attention.qkv.{part}", there, a.heads)
        yield from module(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        yield from module(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        yield from module(f"{ours}.feed_forward.up", f"{theirs}.intermediate.dense")
        yield from module(f"{ours}.feed_forward.down", f"{theirs}.output.dense")
        yield from module(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm")
    head = f"{a.layers + 1}"
    yield from module(f"{head}.dense", "cls.predictions.transform.dense")
    yield from module(f"{head}.norm", "cls.predictions.transform.LayerNorm")
    yield plain(f"{head}.logits.weight", TABLE if a.tied else HEAD)
    yield plain(f"{head}.logits.bias", BIAS if a.tied else OWN_BIAS)


BERT = Family(
    "bert",
    Bert,
    "halocline.models.bert:bert",
    TABLE,
    HEAD,
    "bert.",
    SETTINGS,
    options,
    config,
    weights,
    aliases={OWN_BIAS: BIAS},
)
