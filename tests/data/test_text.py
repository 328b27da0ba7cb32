"""Tokens: windows of text, and what each objective asks of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from halocline.data import BadFile, Dataset, open_dataset
from halocline.data.dataset import IGNORED, bytes_read
from halocline.data.objective import Specials, masked, span_counts, span_length, spans

TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def opened(path: Path | None, objective: str = "causal", **options: object) -> Dataset:
    given = {"classes": 400, "sequence": 16, "evaluation_fraction": 0.0, "samples": 8, **options}
    return open_dataset("synthetic" if path is None else "folder", path, task=objective, **given)  # type: ignore[arg-type]


def test_bytes_predict_the_next(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(TEXT[400:])
    (tmp_path / "a.txt").write_text(TEXT[:400])
    (tmp_path / "c.doc").write_text("not text")
    data = opened(tmp_path)
    assert len(data) == (len(TEXT) - 1) // 16
    for sample in (0, 24, 25, len(data) - 1):  # 24 lies across the two files
        window = list(TEXT[16 * sample : 16 * sample + 17].encode())
        assert data.read(sample, "input").tolist() == window[:-1]
        assert data.read(sample, "target").tolist() == window[1:]
    assert data.read(3, "target", ((4, 9),)).tolist() == list(TEXT[53:58].encode())
    assert bytes_read(data) == 9 * 17
    again = pickle.loads(pickle.dumps(data))
    assert again.read(24, "input").tolist() == data.read(24, "input").tolist()
    assert data.classes == 400 and data.inputs[0].shape == (16,)


def test_a_large_text_stays_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 10**6)
    assert len(pickle.dumps(opened(tmp_path / "a.txt"))) < 400_000  # the split's samples, not the text


def test_splits(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(TEXT)
    train, evaluation = (opened(tmp_path, split=s, evaluation_fraction=0.2) for s in ("train", "evaluation"))
    assert len(train) + len(evaluation) == 56 and len(evaluation) == 11
    (tmp_path / "train.txt").write_text("a" * 100)
    (tmp_path / "val.txt").write_text("b" * 50)
    assert opened(tmp_path).read(0, "input")[0] == ord("a")
    assert opened(tmp_path, split="evaluation").read(0, "input")[0] == ord("b")


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 300), draw=st.integers(0, 2**63))
def test_masked(size: int, draw: int) -> None:
    tokens = np.arange(size) % 90
    shown, target = masked(tokens, Specials(90, mask=95), draw)
    asked = target != IGNORED
    assert asked.sum() == max(1, round(0.15 * size))
    np.testing.assert_array_equal(target[asked], tokens[asked])
    np.testing.assert_array_equal(shown[~asked], tokens[~asked])
    assert set(shown[asked]) <= {95, *range(90)}


def test_masked_shares() -> None:
    tokens = np.full(100_000, 7)
    shown, target = masked(tokens, Specials(90, mask=95), 1)
    asked = shown[target != IGNORED]
    assert (asked == 95).mean() == pytest.approx(0.8, abs=0.02)
    assert (asked == 7).mean() == pytest.approx(0.1 + 0.1 / 90, abs=0.02)


@settings(max_examples=200, deadline=None)
@given(sequence=st.integers(8, 600), sentinels=st.integers(1, 100), draw=st.integers(0, 2**63))
def test_spans_can_be_put_back(sequence: int, sentinels: int, draw: int) -> None:
    """Encoder and target together hold the text; the encoder is full and the decoder is the target, one later."""
    length = span_length(sequence, sentinels)
    tokens = np.arange(length)
    specials = Specials(1000, start=1000, end=1001, sentinels=tuple(range(1002, 1002 + sentinels)))
    seen, heard, target = spans(tokens, specials, draw, sequence, sequence)
    assert len(seen) == len(heard) == len(target) == sequence
    assert seen[-1] == 1001 and (seen != 1000).all()
    counts = target != IGNORED
    assert heard[0] == 1000 and heard[1 : counts.sum()].tolist() == target[: counts.sum() - 1].tolist()
    cut, spans_cut = span_counts(length, sentinels)
    assert counts.sum() == cut + spans_cut + 1

    answers: dict[int, list[int]] = {}
    for token in target[counts][:-1].tolist():
        answers.setdefault(token, []) if token >= 1002 else answers[list(answers)[-1]].append(token)
    text: list[int] = []
    for token in seen[:-1].tolist():
        text += answers[token] if token >= 1002 else [token]
    assert text == tokens.tolist()
    assert all(answers.values()) and list(answers) == list(specials.sentinels[:spans_cut])


@pytest.mark.parametrize("objective", ["causal", "masked", "spans"])
def test_generated_tokens(objective: str) -> None:
    data = opened(None, objective, classes=40, sequence=64)
    assert len(data) == 8 and len(data.inputs) == (2 if objective == "spans" else 1)
    for part in range(len(data.inputs)):
        whole = data.read(2, "input", part=part, epoch=1)
        assert whole.shape == (64,) and whole.min() >= 0 and whole.max() < 40
        assert torch.equal(data.read(2, "input", ((5, 30),), part=part, epoch=1), whole[5:30])
    target = data.read(2, "target", epoch=1)
    assert target.max() < 40
    if objective != "causal":
        assert not torch.equal(target, data.read(2, "target", epoch=2))  # other tokens are asked for in every epoch
    counts = {int((data.read(s, "target") != IGNORED).sum()) for s in range(8)}
    assert len(counts) == 1  # so that means over microbatches are the mean over the batch


def test_generated_tokens_have_a_rule() -> None:
    data = opened(None, classes=40, sequence=512)
    shown, target = data.read(0, "input"), data.read(0, "target")
    follows = (target == (shown + 7) % 40).float().mean()
    assert 0.8 < follows < 0.97


def tokenizer(path: Path, *special: str) -> Path:
    words = sorted({*TEXT.replace(".", " ").split(), ".", "[UNK]"})
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    made.save(str(path))
    return path


def test_a_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT.replace(". ", ".\n"))
    path = tokenizer(tmp_path / "tokenizer.json")
    data = opened(tmp_path, tokenizer=path, classes=10)
    words = Tokenizer.from_file(str(path)).encode(TEXT, add_special_tokens=False).ids
    assert len(data) == (len(words) - 1) // 16
    assert data.read(2, "input").tolist() == words[32:48]
    assert pickle.loads(pickle.dumps(data)).read(2, "input").tolist() == words[32:48]
    with pytest.raises(ValueError, match=r"the tokenizer has 10 tokens, and masked needs 1 more, .* vocabulary has 10"):
        opened(tmp_path, "masked", tokenizer=path, classes=10)
    assert 10 in opened(tmp_path, "masked", tokenizer=path, classes=11).read(0, "input")


def test_a_tokenizer_that_cuts_and_fills_lines(tmp_path: Path) -> None:
    """As those of sentence encoders do; and a mark at the start of a file is no text."""
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8-sig")
    path = tokenizer(tmp_path / "tokenizer.json")
    plain = opened(tmp_path, tokenizer=path, classes=10).read(0, "input")
    made = Tokenizer.from_file(str(path))
    assert plain.tolist() == made.encode(TEXT, add_special_tokens=False).ids[: len(plain)]
    made.enable_truncation(2)
    made.enable_padding(length=20)
    made.save(str(path))
    assert torch.equal(opened(tmp_path, tokenizer=path, classes=10).read(0, "input"), plain)


def test_a_tokenizers_own_specials(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    path = tokenizer(tmp_path / "t.json", "<pad>", "</s>", "[MASK]", *(f"<extra_id_{i}>" for i in range(5)))
    ids = Tokenizer.from_file(str(path)).token_to_id
    assert ids("[MASK]") in opened(tmp_path, "masked", tokenizer=path, classes=18).read(0, "input")
    data = opened(tmp_path, "spans", tokenizer=path, classes=18)
    assert data.read(0, "input")[-1] == ids("</s>")
    assert data.read(0, "input", part=1)[0] == ids("<pad>")
    assert data.read(0, "target")[0] == ids("<extra_id_0>")
    with pytest.raises(ValueError, match="the tokenizer has 18 tokens, the model's vocabulary 17"):
        opened(tmp_path, "masked", tokenizer=path, classes=17)


def test_tokens_in_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000, dtype=np.uint16) % 300)
    data = opened(tmp_path)
    assert data.read(1, "input").tolist() == list(range(16, 32))
    with pytest.raises(BadFile, match=r"a.npy: has token 299, and the model's vocabulary has 299"):
        small = opened(tmp_path, classes=299)
        [small.read(i, "input") for i in range(len(small))]
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    with pytest.raises(BadFile, match=r"a.npy: holds float64 of shape \(3, 4\)"):
        opened(tmp_path)
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(BadFile, match=r"a.npy: cannot be read"):
        opened(tmp_path)


def test_mistakes(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("short")
    for options, message in (
        ({}, r"a.txt have 5 tokens, fewer than the 17 of one sample"),
        ({"classes": 255}, "text as bytes has 256 tokens, and causal needs 0 more, .* vocabulary has 255"),
        ({"sequence": 0}, "a sequence of 0 tokens is too short for causal: use 1 or more"),
        ({"objective": "spans", "sequence": 7}, "a sequence of 7 tokens is too short for spans: use 8 or more"),
        ({"tokenizer": tmp_path / "none.json"}, "there is no tokenizer .*none.json"),
        ({"tokenizer": text}, r"a.txt: is not a tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(text, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"there is no text at .*gone"):
        opened(tmp_path / "gone")
    text.write_bytes(b"\xff\xfe" * 50)
    with pytest.raises(BadFile, match=r"a.txt: is not UTF-8"):
        opened(text, tokenizer=tokenizer(tmp_path / "t.json"))
    text.unlink()
    (tmp_path / "t.json").unlink()
    with pytest.raises(ValueError, match="holds no text: bring"):
        opened(tmp_path)
    with pytest.raises(ValueError, match="lesion data is images, and causal is asked of tokens"):
        open_dataset("lesion", task="causal", classes=10)
