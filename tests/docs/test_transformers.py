"""The example of docs/transformers.md is GPT-2 itself, and runs under a plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from halocline.models.model import make, tie
from harness.processes import typed

DOCUMENT = Path(__file__).parents[2] / "docs" / "transformers.md"
transformers = pytest.importorskip("transformers")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with my_gpt2.py, which is the current one."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    source = next(block for block in blocks if "GPT2Block" in block)
    (tmp_path / "my_gpt2.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_it_equals_the_whole_model(example: Path) -> None:
    torch.manual_seed(0)
    model = make("my_gpt2:gpt2", layers=2)
    net = tie(torch.nn.Sequential(*(layer() for layer in model.layers)), model.tied).eval()
    block = net[1]
    peer = transformers.GPT2LMHeadModel(block.attn.config).eval()
    names = {"0.": "transformer.", "1.": "transformer.h.0.", "2.": "transformer.h.1.", "3.ln_f": "transformer.ln_f"}
    state = {}
    for key, tensor in net.state_dict().items():
        start = next((s for s in names if key.startswith(s)), "3.")
        state[names.get(start, "") + key.removeprefix(start)] = tensor
    peer.load_state_dict(state)
    words = torch.randint(500, (2, 32))
    with torch.no_grad():
        assert torch.allclose(net(words), peer(words).logits, atol=1e-6)


@pytest.mark.slow
def test_its_command_finds_no_difference(example: Path) -> None:
    line = re.search(r"`halocline (verify my_gpt2:gpt2 [^`]*)`", DOCUMENT.read_text(encoding="utf-8"))
    assert line
    (ended,) = typed([f"halocline {line[1]} --steps 1"], example)
    assert ended.code == 0, ended.err
    assert "exact" in ended.out
