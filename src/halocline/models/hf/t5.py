"""T5's names and settings in Hugging Face's files, those of version 1.1 (gated, with a head of its own) included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.hf.family import Config, Family, Weight, plain, require
from halocline.models.t5 import GATED_GELU, RELU, T5

TABLE, HEAD = "shared.weight", "lm_head.weight"
SETTINGS = {
    "layers": ("num_layers", 6),
    "hidden": ("d_model", 512),
    "heads": ("num_heads", 8),
    "vocab": ("vocab_size", 32128),
    "kv": ("d_kv", 64),
    "ff": ("d_ff", 2048),
    "buckets": ("relative_attention_num_buckets", 32),
    "furthest": ("relative_attention_max_distance", 128),
    "activation": ("feed_forward_proj", RELU),
    "eps": ("layer_norm_epsilon", 1e-6),
}


def options(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    require(config, "feed_forward_proj", (RELU, GATED_GELU))
    # Version 1.1 does not scale what enters its head, and said so by not tying it.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True) is not False)
    return {"decoder_layers": config.get("num_decoder_layers") or found["layers"], "scaled": scaled}


def config(a: T5) -> dict[str, Any]:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "num_decoder_layers": a.decoder_layers,
        "dropout_rate": a.dropout,
        "tie_word_embeddings": a.scaled,
        "scale_decoder_outputs": a.scaled,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    }


def weights(a: T5) -> Iterator[Weight]:
    yield plain("0.tokens.weight", TABLE)
    for number in range(a.layers):
        ours, theirs = f"{number + 1}", f"encoder.block.{number}.layer"
        yield from _attention(ours, f"{theirs}.0", "SelfAttention")
        yield _bias(ours, "encoder")
        yield from _feed_forward(ours, f"{theirs}.1", a)
    yield plain(f"{a.layers}.final_norm.weight", "encoder.final_layer_norm.weight")
    for number in range(a.decoder_layers):
        first, theirs = a.layers + 1 + 2 * number, f"decoder.block.{number}.layer"
        yield from _attention(f"{first}", f"{theirs}.0", "SelfAttention")
        yield _bias(f"{first}", "decoder")
        yield from _attention(f"{first + 1}", f"{theirs}.1", "EncDecAttention")
        yield from _feed_forward(f"{first + 1}", f"{theirs}.2", a)
    head = a.layers + 2 * a.decoder_layers + 1
    yield plain(f"{head}.norm.weight", "decoder.final_layer_norm.weight")
    yield plain(f"{head}.logits.weight", TABLE if a.tied else HEAD)


def _attention(ours: str, theirs: str, kind: str) -> Iterator[Weight]:
    yield plain(f"{ours}.attention_norm.weight", f"{theirs}.layer_norm.weight")
    for part, there in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
        yield plain(f"{ours}.attention.{part}.weight", f"{theirs}.{kind}.{there}.weight")


def _bias(ours: str, half: str) -> Weight:
    theirs = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return plain(f"{ours}.attention.position.table.weight", theirs)


def _feed_forward(ours: str, theirs: str, a: T5) -> Iterator[Weight]:
    yield plain(f"{ours}.feed_forward_norm.weight", f"{theirs}.layer_norm.weight")
    parts = {"up": "wi", "down": "wo"} if a.activation == RELU else {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    for part, there in parts.items():
        yield plain(f"{ours}.feed_forward.{part}.weight", f"{theirs}.DenseReluDense.{there}.weight")


T5_FAMILY = Family("t5", T5, "halocline.models.t5:t5", TABLE, HEAD, "", SETTINGS, options, config, weights)
