"""Parity with Hugging Face transformers, and its folders read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from halocline.models import hf
from halocline.models.hf import FAMILIES
from halocline.models.losses import token_loss
from halocline.models.model import make, tie
from harness.peers import (
    CONFIGS,
    TOKENS,
    VOCAB,
    apart,
    fill,
    gradients,
    inputs_of,
    load_peer,
    logits_of,
    one_device,
    ours_of,
    peer_of,
    words,
)

# In float64 transformers still computes T5's norms and Bloom's softmax in float32, and rounds Bloom's GELU constants.
PRECISE = {"gpt2": 1e-10, "bert": 1e-10, "t5": 1e-6, "bloom": 1e-6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_all_gradients_equal_those_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    peer = peer_of(name, dtype)
    kind = peer.config.model_type
    peer.save_pretrained(tmp_path)
    model, net = ours_of(tmp_path)
    assert next(net.parameters()).dtype == dtype
    source, target, labels = words(seed=1), words(seed=2), words(seed=3)
    theirs, ours = logits_of(peer, source, target), net(inputs_of(model, source, target))
    limit = 1e-6 if dtype == torch.float32 else PRECISE[kind]
    assert apart(ours, theirs) < limit
    nn.functional.cross_entropy(theirs.flatten(0, 1), labels.flatten()).backward()
    token_loss(ours, labels).backward()
    found = gradients(net, model, FAMILIES[kind])
    expected = {n: p.grad for n, p in peer.named_parameters() if p.grad is not None}
    assert set(expected) <= set(found)
    largest = max(g.abs().max().item() for g in expected.values())
    for key, gradient in expected.items():
        difference = (found[key] - gradient).abs().max().item()
        assert difference < limit * max(gradient.abs().max().item(), 0.1 * largest), key


@pytest.mark.parametrize("name", CONFIGS)
def test_what_we_write_transformers_loads(name: str, tmp_path: Path) -> None:
    """There and back: equal logits, equal tensors."""
    peer = peer_of(name)
    peer.save_pretrained(tmp_path / "theirs")
    model, net = ours_of(tmp_path / "theirs")
    hf.save(tmp_path / "ours", model, net.named_parameters())
    again = load_peer(tmp_path / "ours", peer.config.model_type)
    source, target = words(seed=1), words(seed=2)
    with torch.no_grad():
        assert torch.equal(logits_of(again, source, target), logits_of(peer, source, target))
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert set(theirs) - set(ours) <= {"cls.predictions.bias"}  # which a head of its own does without
    assert hf.describe(tmp_path / "ours") == hf.describe(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt3-small", {}),
        ("gpt3-39b", {}),
        ("bert-huge-uncased", {}),
        ("t5-3b", {}),
        ("t5-small", {"tied": False, "scaled": True, "decoder_layers": 3}),
        ("bloom-3b", {"heads": 6}),
    ],
)
def test_a_model_of_the_zoo_becomes_one_of_transformers(name: str, options: dict[str, object], tmp_path: Path) -> None:
    sizes = {"layers": 2, "hidden": 24, "heads": 4, "vocab": VOCAB, "seq": TOKENS, **options}
    model = make(name, **sizes)
    torch.manual_seed(3)
    net = tie(one_device(model), model.tied)
    hf.save(tmp_path, model, [*net.named_parameters(), *net.named_buffers()])
    kind = json.loads((tmp_path / "config.json").read_text())["model_type"]
    peer = load_peer(tmp_path, kind)
    source, target = words(seed=1), words(seed=2)
    with torch.no_grad():
        assert apart(net(inputs_of(model, source, target)), logits_of(peer, source, target)) < 1e-6
    address, described = hf.describe(tmp_path)
    assert make(address, **described).architecture == model.architecture


def test_shards_are_written_and_read(tmp_path: Path) -> None:
    peer = peer_of("bert")
    peer.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    model, net = ours_of(tmp_path / "theirs")
    hf.save(tmp_path / "ours", model, net.named_parameters(), shard_bytes=20_000)
    index = json.loads((tmp_path / "ours" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    again = load_peer(tmp_path / "ours", "bert")
    with torch.no_grad():
        assert torch.equal(logits_of(again, words(), words()), logits_of(peer, words(), words()))
    hf.save(tmp_path / "ours", model, net.named_parameters())  # one file takes the place of many
    assert {p.name for p in (tmp_path / "ours").iterdir()} == {"config.json", "model.safetensors"}


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    peer_of("gpt2").save_pretrained(tmp_path)
    address, options = hf.describe(tmp_path)
    model = make(address, **options)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {key: tensor for key, tensor in tensors.items() if key.startswith(("transformer.h.1.", "transformer.wte"))}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    names = [name for name, _ in one_device(model)[3].named_parameters(prefix="3")]
    found = [name for name, _ in hf.load(tmp_path, model, {*names, "5.logits.weight"})]
    assert sorted(found) == sorted([*names, "5.logits.weight"])
    with pytest.raises(ValueError, match=r"has no tensor transformer\.wpe\.weight"):
        list(hf.load(tmp_path, model))


def test_files_that_were_saved_without_a_head_or_with_old_names(tmp_path: Path) -> None:
    for name, prefix in (("gpt2", "transformer."), ("bloom", "transformer."), ("bert", "bert.")):
        directory = tmp_path / name
        peer = peer_of(name)
        peer.save_pretrained(directory)
        tensors = {
            key.removeprefix(prefix).replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
            for key, tensor in load_file(directory / "model.safetensors").items()
        }
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        _, net = ours_of(directory)
        with torch.no_grad():
            assert apart(net(words()), logits_of(peer, words(), words())) < 1e-6


def test_two_different_tables_are_two_whatever_the_settings_say(tmp_path: Path) -> None:
    """T5 1.1 as transformers 5 writes it again."""
    peer_of("t5, gated").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = 0.2 * torch.randn(VOCAB, 24)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model, net = ours_of(tmp_path)
    assert not any("logits" in second for _, second in model.tied)
    peer = load_peer(tmp_path, "t5")
    with torch.no_grad():
        assert apart(net((words(), words(seed=2))), logits_of(peer, words(), words(seed=2))) < 1e-6


def test_a_folder_of_another_size_is_refused_with_both_values(tmp_path: Path) -> None:
    peer_of("gpt2").save_pretrained(tmp_path)
    address, options = hf.describe(tmp_path)
    with pytest.raises(ValueError, match=r"has hidden = 24 and .* has hidden = 48: make the model with hidden = 24"):
        hf.load(tmp_path, make(address, **{**options, "hidden": 48, "ff": 96}))
    with pytest.raises(ValueError, match=r"is for halocline.models.gpt:gpt and bloom-3b was made by .*bloom"):
        hf.load(tmp_path, make("bloom-3b"))
    with pytest.raises(ValueError, match="small-mlp has no form of Hugging Face's: gpt2, bert, t5, bloom"):
        hf.load(tmp_path, make("small-mlp"))
    shorter = make(address, **{**options, "seq": 8, "dropout": 0.3})
    fill(one_device(shorter), hf.load(tmp_path, shorter))  # what is of training may differ


def test_settings_that_are_not_ours_are_refused_by_name(tmp_path: Path) -> None:
    def described(**config: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        hf.describe(tmp_path)

    described(model_type="gpt2")
    with pytest.raises(ValueError, match="activation_function = 'relu' and the model here knows 'gelu_new'"):
        described(model_type="gpt2", activation_function="relu")
    with pytest.raises(ValueError, match="feed_forward_proj = 'gated-silu' and the model here knows 'relu' or 'gated"):
        described(model_type="t5", feed_forward_proj="gated-silu")
    with pytest.raises(
        ValueError, match=r"type 'llama' and gpt2, bert, t5, bloom can be read.*package\.module:callable"
    ):
        described(model_type="llama")
    described(model_type="bloom", slow_but_exact=True)
    with pytest.raises(ValueError, match="slow_but_exact = True and the model here knows False"):
        described(model_type="bloom", slow_but_exact=True, pretraining_tp=2)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        hf.describe(tmp_path)
    with pytest.raises(ValueError, match=r"has no config\.json: give the folder that save_pretrained wrote"):
        hf.describe(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match="save_pretrained it again, which writes safetensors"):
        hf.load(tmp_path, make("gpt3-small"))


def test_files_that_cannot_be_read_are_refused_in_a_line(tmp_path: Path) -> None:
    model = make("gpt3-small", layers=1, hidden=8, heads=2, vocab=VOCAB, seq=4)
    hf.save(tmp_path, model, one_device(model).named_parameters())
    single = tmp_path / "model.safetensors"
    tensors = load_file(single)
    save_file({**tensors, "transformer.wpe.weight": torch.zeros(4, 8, dtype=torch.int8)}, single)
    with pytest.raises(ValueError, match=r"wpe\.weight holds int8, as quantized models do: save it in float32"):
        list(hf.load(tmp_path, model))
    single.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"is damaged or not the file itself .*: download it again"):
        hf.load(tmp_path, model)
    for text in ("{", "{}", "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ValueError, match="is no index of tensors: copy the whole folder again"):
            hf.load(tmp_path, model)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    model = make("gpt3-small", layers=1, hidden=8, heads=2, vocab=VOCAB, seq=4)
    net = one_device(model)
    hf.save(tmp_path, model, net.named_parameters())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    some = list(net.named_parameters())[:-4]
    with pytest.raises(ValueError, match=r"parameters are missing, e\.g\. 2\.feed_forward\.down\.bias"):
        hf.save(tmp_path, model, some, shard_bytes=100)
    with pytest.raises(ValueError, match=r"0\.tokens\.weight is \(5, 8\) and gpt3-small has \(61, 8\)"):
        hf.save(tmp_path, model, [("0.tokens.weight", torch.zeros(5, 8))])
    with pytest.raises(ValueError, match=r"9\.nothing is no parameter of gpt3-small"):
        hf.save(tmp_path, model, [("9.nothing", torch.zeros(5, 8))])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
