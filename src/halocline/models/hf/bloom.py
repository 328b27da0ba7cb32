"""Bloom's names and settings in Hugging Face's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.bloom import Bloom
from halocline.models.hf.family import Config, Family, Weight, module, plain, require

TABLE, HEAD = "transformer.word_embeddings.weight", "lm_head.weight"
SETTINGS = {
    "layers": ("n_layer", 2),
    "hidden": ("hidden_size", 64),
    "heads": ("n_head", 8),
    "vocab": ("vocab_size", 250880),
    "eps": ("layer_norm_epsilon", 1e-5),
}


def options(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    require(config, "apply_residual_connection_post_layernorm", (False,))
    if config.get("pretraining_tp", 1) > 1:
        require(config, "slow_but_exact", (False,))  # which leaves out the biases of what adds to the residual
    return {}


def config(a: Bloom) -> dict[str, Any]:
    return {
        "architectures": ["BloomForCausalLM"],
        "hidden_dropout": a.dropout,
        "attention_dropout": a.attention_dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def weights(a: Bloom) -> Iterator[Weight]:
    yield plain("0.tokens.weight", TABLE)
    yield from module("0.norm", "transformer.word_embeddings_layernorm")
    for number in range(a.layers):
        ours, theirs = f"{number + 1}", f"transformer.h.{number}"
        yield from module(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        yield from module(f"{ours}.attention.qkv", f"{theirs}.self_attention.query_key_value")  # head by head there too
        yield from module(f"{ours}.attention.out", f"{theirs}.self_attention.dense")
        yield from module(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm")
        yield from module(f"{ours}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h")
        yield from module(f"{ours}.feed_forward.down", f"{theirs}.mlp.dense_4h_to_h")
    yield from module(f"{a.layers + 1}.norm", "transformer.ln_f")
    yield plain(f"{a.layers + 1}.logits.weight", TABLE if a.tied else HEAD)


BLOOM = Family(
    "bloom",
    Bloom,
    "halocline.models.bloom:bloom",
    TABLE,
    HEAD,
    "transformer.",
    SETTINGS,
    options,
    config,
    weights,
    aliases={"n_layer": "num_hidden_layers", "hidden_size": "n_embed", "n_head": "num_attention_heads"},
)
