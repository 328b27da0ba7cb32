"""BERT's names and settings in Hugging Face's files, with the head for masked words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.bert import Bert
from halocline.models.hf.family import Config, Family, require
from halocline.models.hf.weight import Weight, head_by_head, module, plain

TABLE, HEAD = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BIAS, OWN_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
"""The head's bias, and how it is called beside a head of its own; older files know only the first name."""


def options(config: Config) -> dict[str, Any]:
    require(config, "hidden_act", ("gelu",))
    require(config, "position_embedding_type", ("absolute", None))
    require(config, "is_decoder", (False,))
    require(config, "add_cross_attention", (False,))
    positions, padding = config.get("max_position_embeddings", 512), config.get("pad_token_id", 0)
    vocab = config.get("vocab_size", 30522)
    return {
        "layers": config.get("num_hidden_layers", 12),
        "hidden": config.get("hidden_size", 768),
        "heads": config.get("num_attention_heads", 12),
        "vocab": vocab,
        "seq": positions,
        "positions": positions,
        "types": config.get("type_vocab_size", 2),
        "ff": config.get("intermediate_size", 3072),
        "padding": -1 if padding is None else padding % vocab,  # a table counts it from its end if below 0
        "eps": config.get("layer_norm_eps", 1e-12),
    }


def config(a: Bert) -> dict[str, Any]:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": a.vocab,
        "max_position_embeddings": a.positions,
        "type_vocab_size": a.types,
        "hidden_size": a.hidden,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "intermediate_size": a.ff,
        "hidden_act": "gelu",
        "hidden_dropout_prob": a.dropout,
        "attention_probs_dropout_prob": a.attention_dropout,
        "layer_norm_eps": a.eps,
        "pad_token_id": a.padding if a.padding >= 0 else None,
        "tie_word_embeddings": a.tied,
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
    options,
    config,
    weights,
    aliases={OWN_BIAS: BIAS},
)
