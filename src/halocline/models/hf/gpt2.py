"""GPT-2's names and settings in Hugging Face's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halocline.models.gpt import Gpt
from halocline.models.hf.family import Config, Family, Weight, head_by_head, module, plain, require, transposed

TABLE, HEAD = "transformer.wte.weight", "lm_head.weight"
SETTINGS = {
    "layers": ("n_layer", 12),
    "hidden": ("n_embd", 768),
    "heads": ("n_head", 12),
    "vocab": ("vocab_size", 50257),
    "positions": ("n_positions", 1024),
    "eps": ("layer_norm_epsilon", 1e-5),
}


def options(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    require(config, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
    require(config, "scale_attn_weights", (True,))
    require(config, "scale_attn_by_inverse_layer_idx", (False,))
    require(config, "add_cross_attention", (False,))
    return {"seq": found["positions"], "ff": config.get("n_inner") or 4 * found["hidden"]}


def config(a: Gpt) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_inner": a.ff,
        "activation_function": "gelu_new",
        "resid_pdrop": a.dropout,
        "embd_pdrop": a.dropout,
        "attn_pdrop": a.attention_dropout,
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


GPT2 = Family("gpt2", Gpt, "halocline.models.gpt:gpt", TABLE, HEAD, "transformer.", SETTINGS, options, config, weights)
