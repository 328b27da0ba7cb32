"""The names and settings of GPT-2, BERT, T5 and Bloom in Hugging Face's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from halocline.models.bert import Bert
from halocline.models.bloom import Bloom
from halocline.models.gpt import Gpt
from halocline.models.hf.family import Config, Family, Weight, head_by_head, module, plain, require
from halocline.models.t5 import GATED_GELU, RELU, T5


class Gpt2Files(Family):
    """GPT-2's."""

    model_type, architecture, address = "gpt2", Gpt, "halocline.models.gpt:gpt"
    written_as = "GPT2LMHeadModel"
    table, head, prefix = "transformer.wte.weight", "lm_head.weight", "transformer."
    settings: ClassVar[dict[str, tuple[str, Any]]] = {
        "layers": ("n_layer", 12),
        "hidden": ("n_embd", 768),
        "heads": ("n_head", 12),
        "vocab": ("vocab_size", 50257),
        "positions": ("n_positions", 1024),
        "eps": ("layer_norm_epsilon", 1e-5),
    }

    def options(self, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        require(config, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
        require(config, "scale_attn_weights", (True,))
        require(config, "scale_attn_by_inverse_layer_idx", (False,))
        require(config, "add_cross_attention", (False,))
        return {"seq": found["positions"], "ff": config.get("n_inner") or 4 * found["hidden"]}

    def config(self, a: Gpt) -> dict[str, Any]:
        return {
            "n_inner": a.ff,
            "activation_function": "gelu_new",
            "resid_pdrop": a.dropout,
            "embd_pdrop": a.dropout,
            "attn_pdrop": a.attention_dropout,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def weights(self, a: Gpt) -> Iterator[Weight]:
        yield plain("0.tokens.weight", self.table)
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
                yield plain(f"{ours}.{part}.weight", f"{theirs}.{there}.weight", turned=True)
                yield plain(f"{ours}.{part}.bias", f"{theirs}.{there}.bias")
        yield from module(f"{a.layers + 2}.norm", "transformer.ln_f")
        yield plain(f"{a.layers + 2}.logits.weight", self.table if a.tied else self.head)


class BertFiles(Family):
    """BERT's, with the head for masked words."""

    model_type, architecture, address = "bert", Bert, "halocline.models.bert:bert"
    written_as = "BertForMaskedLM"
    table, head, prefix = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "bert."
    aliases: ClassVar[dict[str, str]] = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    settings: ClassVar[dict[str, tuple[str, Any]]] = {
        "layers": ("num_hidden_layers", 12),
        "hidden": ("hidden_size", 768),
        "heads": ("num_attention_heads", 12),
        "vocab": ("vocab_size", 30522),
        "positions": ("max_position_embeddings", 512),
        "types": ("type_vocab_size", 2),
        "ff": ("intermediate_size", 3072),
        "eps": ("layer_norm_eps", 1e-12),
    }

    def options(self, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        require(config, "hidden_act", ("gelu",))
        require(config, "position_embedding_type", ("absolute", None))
        require(config, "is_decoder", (False,))
        require(config, "add_cross_attention", (False,))
        padding = config.get("pad_token_id", 0)
        # A table counts it from its end if below 0.
        return {"seq": found["positions"], "padding": -1 if padding is None else padding % found["vocab"]}

    def config(self, a: Bert) -> dict[str, Any]:
        return {
            "hidden_act": "gelu",
            "hidden_dropout_prob": a.dropout,
            "attention_probs_dropout_prob": a.attention_dropout,
            "pad_token_id": a.padding if a.padding >= 0 else None,
        }

    def weights(self, a: Bert) -> Iterator[Weight]:
        yield plain("0.tokens.weight", self.table)
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
        yield plain(f"{head}.logits.weight", self.table if a.tied else self.head)
        own_bias = "cls.predictions.decoder.bias"  # beside a head of its own
        yield plain(f"{head}.logits.bias", self.aliases[own_bias] if a.tied else own_bias)


class T5Files(Family):
    """T5's, those of version 1.1 (gated, with a head of its own) included."""

    model_type, architecture, address = "t5", T5, "halocline.models.t5:t5"
    written_as = "T5ForConditionalGeneration"
    table, head, prefix = "shared.weight", "lm_head.weight", ""
    settings: ClassVar[dict[str, tuple[str, Any]]] = {
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

    def options(self, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        require(config, "feed_forward_proj", (RELU, GATED_GELU))
        # Version 1.1 does not scale what enters its head, and said so by not tying it.
        scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True) is not False)
        return {"decoder_layers": config.get("num_decoder_layers") or found["layers"], "scaled": scaled}

    def config(self, a: T5) -> dict[str, Any]:
        return {
            "is_encoder_decoder": True,
            "num_decoder_layers": a.decoder_layers,
            "dropout_rate": a.dropout,
            "tie_word_embeddings": a.scaled,
            "scale_decoder_outputs": a.scaled,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
        }

    def weights(self, a: T5) -> Iterator[Weight]:
        yield plain("0.tokens.weight", self.table)
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
        yield plain(f"{head}.logits.weight", self.table if a.tied else self.head)


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


class BloomFiles(Family):
    """Bloom's."""

    model_type, architecture, address = "bloom", Bloom, "halocline.models.bloom:bloom"
    written_as = "BloomForCausalLM"
    table, head, prefix = "transformer.word_embeddings.weight", "lm_head.weight", "transformer."
    aliases: ClassVar[dict[str, str]] = {
        "n_layer": "num_hidden_layers",
        "hidden_size": "n_embed",
        "n_head": "num_attention_heads",
    }
    settings: ClassVar[dict[str, tuple[str, Any]]] = {
        "layers": ("n_layer", 2),
        "hidden": ("hidden_size", 64),
        "heads": ("n_head", 8),
        "vocab": ("vocab_size", 250880),
        "eps": ("layer_norm_epsilon", 1e-5),
    }

    def options(self, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        require(config, "apply_residual_connection_post_layernorm", (False,))
        if config.get("pretraining_tp", 1) > 1:
            require(config, "slow_but_exact", (False,))  # which leaves out the biases of what adds to the residual
        return {}

    def config(self, a: Bloom) -> dict[str, Any]:
        return {
            "hidden_dropout": a.dropout,
            "attention_dropout": a.attention_dropout,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def weights(self, a: Bloom) -> Iterator[Weight]:
        yield plain("0.tokens.weight", self.table)
        yield from module("0.norm", "transformer.word_embeddings_layernorm")
        for number in range(a.layers):
            ours, theirs = f"{number + 1}", f"transformer.h.{number}"
            yield from module(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
            # Head by head there too.
            yield from module(f"{ours}.attention.qkv", f"{theirs}.self_attention.query_key_value")
            yield from module(f"{ours}.attention.out", f"{theirs}.self_attention.dense")
            yield from module(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm")
            yield from module(f"{ours}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h")
            yield from module(f"{ours}.feed_forward.down", f"{theirs}.mlp.dense_4h_to_h")
        yield from module(f"{a.layers + 1}.norm", "transformer.ln_f")
        yield plain(f"{a.layers + 1}.logits.weight", self.table if a.tied else self.head)


FAMILIES: dict[str, Family] = {made.model_type: made for made in (Gpt2Files(), BertFiles(), T5Files(), BloomFiles())}
