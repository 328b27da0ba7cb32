"""A safetensors file, written tensor by tensor while its SHA-256 is taken, so that one tensor at a time needs memory.

Knows names, tensors and bytes; nothing of training. Reading is left to the safetensors library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What the format calls a dtype."""
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Heading:
    """What the file says of a tensor before its bytes come."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Written:
    """A file on disk."""

    sha256: str
    bytes: int


def order(heading: Heading) -> tuple[int, str]:
    """The order of tensors in a file: readers want every tensor at a multiple of its item's size."""
    return -heading.dtype.itemsize, heading.name


def write(
    path: Path, headings: Sequence[Heading], tensors: Iterable[Tensor], about: dict[str, str] | None = None
) -> Written:
    """Write the tensors, which come in the order of their headings, and wait until they are on the disk."""
    digest = hashlib.sha256()
    count = 0
    with open(path, "wb") as file:
        head = _head(headings, about or {})
        digest.update(head)
        count += file.write(head)
        for heading, tensor in zip(headings, tensors, strict=True):
            data = _bytes(tensor.detach().to(device="cpu", dtype=heading.dtype))
            assert len(data) == heading.bytes, f"{heading.name}: {len(data)} bytes and not {heading.bytes}"
            digest.update(data)
            count += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Written(digest.hexdigest(), count)


def _head(headings: Sequence[Heading], about: dict[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": about} if about else {}
    start = 0
    for heading in headings:
        if heading.dtype not in _CODES:
            raise ValueError(
                f"{heading.name} is of dtype {heading.dtype}, which a safetensors file cannot hold here: "
                f"use one of {', '.join(str(d).removeprefix('torch.') for d in _CODES)}"
            )
        table[heading.name] = {
            "dtype": _CODES[heading.dtype],
            "shape": list(heading.shape),
            "data_offsets": [start, start + heading.bytes],
        }
        start += heading.bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_of(path: Path) -> Written:
    """What is on the disk now."""
    digest = hashlib.sha256()
    count = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            count += len(chunk)
    return Written(digest.hexdigest(), count)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
