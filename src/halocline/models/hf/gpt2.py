"""GPT-2's names and settings in Hugging Face's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.gpt import Gpt
from halocline.models.hf.family import Config, Family, require
from halocline.models.hf.weight import Weight, head_by_head, module, plain, transposed

TABLE, HEAD = "transformer.wte.weight", "lm_head.weight"


def options(config: Config) -> dict[str, Any]:
    require(config, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
    require(config, "scale_attn_weights", (True,))
    require(config, "scale_attn_by_inverse_layer_idx", (False,))
    require(config, "add_cross_attention", (False,))
    hidden, positions = config.get("n_embd", 768), config.get("n_positions", 1024)
    return {
        "layers": config.get("n_layer", 12),
        "hidden": hidden,
        "heads": config.get("n_head", 12),
        "vocab": config.get("vocab_size", 50257),
        "seq": positions,
        "positions": positions,
        "ff": config.get("n_inner") or 4 * hidden,
        "eps": config.get("layer_norm_epsilon", 1e-5),
    }


def config(a: Gpt) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": a.vocab,
        "n_positions": a.positions,
        "n_embd": a.hidden,
        "n_layer": a.layers,
        "n_head": a.heads,
        "n_inner": a.ff,
        "activation_function": "gelu_new",
        "resid_pdrop": a.dropout,
        "embd_pdrop": a.dropout,
        "attn_pdrop": a.attention_dropout,
        "layer_norm_epsilon": a.eps,
        "tie_word_embeddings": a.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def weights(a: Gpt) -> Iterator[Weight]:
    yield plain("0.tokens.weight", TABLE)
    yield plain("1.positions.weight", "transformer.wpe.weight")
    for number in range(a.layers):
        ours, theirs = f"{number + 2}", f"transformer.h.{number}"
        yield from module(f"{ours}.attention_norm", f"{theirs}.ln_1")
        yield head_by_head(f"{ours}.attention.qkv.weight", [f"{theirs}.attn.c_attn.weight"], a.heads, turned=True)
        yield head_by_head(f"{ours}.attention.qkv.bias", [f"{theirs}.attn.c_attn.bias"], a.heads)
        yield from module(f"{ours}.feed_forward_norm", f"{theirs}.ln_2")
        for part, there in (
            ("attention.out", "attn.c_proj"),
            ("feed_forward.up", "mlp.c_fc"),
            ("feed_forward.down", "mlp.c_proj"),
        ):
            yield transposed(f"{ours}.{part}.weight", f"{theirs}.{there}.weight")
            yield plain(f"{ours}.{part}.bias", f"{theirs}.{there}.bias")
    yield from module(f"{a.layers + 2}.norm", "transformer.ln_f")
    yield plain(f"{a.layers + 2}.logits.weight", TABLE if a.tied else HEAD)


GPT2 = Family("gpt2", Gpt, "halocline.models.gpt:gpt", TABLE, HEAD, "transformer.", options, config, weights)
