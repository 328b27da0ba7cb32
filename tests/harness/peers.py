"""Small random models of transformers, ours with the same weights, and how far apart the two are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halocline.models import hf
from halocline.models.hf.family import Family
from halocline.models.model import SPANS, Model, make, tie

transformers = pytest.importorskip("transformers")

VOCAB, TOKENS = 61, 23

CONFIGS: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=40, n_embd=24, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    ),
    "gpt2, own head, narrow": lambda: transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=TOKENS,
        n_embd=24,
        n_layer=2,
        n_head=3,
        n_inner=40,
        layer_norm_epsilon=1e-3,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "bert": lambda: transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=56,
        max_position_embeddings=40,
    ),
    "bert, own head": lambda: transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=TOKENS,
        type_vocab_size=3,
        pad_token_id=None,
        tie_word_embeddings=False,
    ),
    "t5": lambda: transformers.T5Config(
        vocab_size=VOCAB, d_model=24, d_kv=5, d_ff=40, num_layers=3, num_decoder_layers=2, num_heads=4
    ),
    "t5, gated": lambda: transformers.T5Config(
        vocab_size=VOCAB,
        d_model=24,
        d_kv=6,
        d_ff=40,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        tie_word_embeddings=False,
    ),
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCAB, hidden_size=24, n_layer=3, n_head=4),
    "bloom, six heads": lambda: transformers.BloomConfig(vocab_size=VOCAB, hidden_size=24, n_layer=2, n_head=6),
}

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "bloom": "BloomForCausalLM",
}


def peer_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers whose parameters are all random, norms and biases too, without dropout."""
    torch.manual_seed(7)
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    peer = getattr(transformers, CLASSES[config.model_type])(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.ndim == 1 or config.model_type != "t5":  # whose matrices start large enough
                parameter.add_(0.1 * torch.randn_like(parameter))
    return peer


def load_peer(directory: Path, kind: str) -> Any:
    return getattr(transformers, CLASSES[kind]).from_pretrained(directory, attn_implementation="eager").eval()


def ours_of(directory: Path, **options: Any) -> tuple[Model, nn.Sequential]:
    """Our model with the weights of a folder, on one device."""
    address, described = hf.describe(directory)
    model = make(address, **{**described, **options})
    net = one_device(model)
    fill(net, hf.load(directory, model))
    return model, tie(net, model.tied).eval()


def one_device(model: Model) -> nn.Sequential:
    return nn.Sequential(*(layer if isinstance(layer, nn.Module) else layer() for layer in model.layers))


def fill(net: nn.Sequential, weights: Any) -> None:
    """Every parameter, each once."""
    parameters = dict(net.named_parameters(remove_duplicate=False))
    for name, tensor in weights:
        parameter = parameters.pop(name)
        parameter.data = tensor.to(dtype=tensor.dtype, copy=True)
    assert not parameters, f"without a value: {list(parameters)}"


def words(samples: int = 3, seed: int = 5) -> Tensor:
    return torch.randint(VOCAB, (samples, TOKENS), generator=torch.Generator().manual_seed(seed))


def logits_of(peer: Any, source: Tensor, target: Tensor) -> Tensor:
    if peer.config.model_type == "t5":
        return peer(input_ids=source, decoder_input_ids=target).logits
    return peer(input_ids=source).logits


def inputs_of(model: Model, source: Tensor, target: Tensor) -> Any:
    return (source, target) if model.task == SPANS else source


def gradients(net: nn.Sequential, model: Model, family: Family) -> dict[str, Tensor]:
    """Ours under their names and in their layout."""
    copies = {second for _, second in model.tied}
    found = {}
    for weight in family.weights(model.architecture):
        if weight.ours not in copies:
            gradient = net.get_parameter(weight.ours).grad
            assert gradient is not None
            found.update(zip(weight.theirs, weight.write(gradient)))
    return found


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3)).item()
