"""The files are what the safetensors library writes and reads, whatever the dtypes and shapes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from halocline.train.tensor_file import Heading, digest_of, order, write

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def written(path: Path, tensors: dict[str, Tensor]) -> None:
    headings = sorted((Heading(n, tuple(t.shape), t.dtype) for n, t in tensors.items()), key=order)
    found = write(path, headings, (tensors[h.name] for h in headings), {"format": "pt"})
    assert found == digest_of(path)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.bytes == path.stat().st_size


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=8,
    ),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_library_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[torch.dtype, list[int]]], turned: bool
) -> None:
    tensors = {}
    for number, (dtype, shape) in enumerate(kinds):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(number)) * 3
        tensors[f"layer.{number}"] = (values.mT if turned and values.ndim > 1 else values).to(dtype)
    path = tmp_path_factory.mktemp("files") / "a.safetensors"
    written(path, tensors)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_as_large_as_the_librarys_own(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3, 5), "b": torch.arange(7), "c": torch.zeros((), dtype=torch.bool)}
    written(tmp_path / "ours", tensors)
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    assert abs((tmp_path / "ours").stat().st_size - (tmp_path / "theirs").stat().st_size) <= 8


def test_a_dtype_without_a_code_is_named(tmp_path: Path) -> None:
    heading = Heading("0.phase", (2,), torch.complex64)
    with pytest.raises(ValueError, match=r"0\.phase is of dtype torch\.complex64.*float32"):
        write(tmp_path / "a", [heading], [torch.zeros(2, dtype=torch.complex64)])
