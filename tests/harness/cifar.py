"""CIFAR's files, small: the binary ones, and pickles operation by operation as Python 2 wrote those that are published.

write_binary(folder / "data_batch_1.bin", 5)
labels, images = write_pickle(folder / "data_batch_1", 5)
write_pickle(folder / "train", 5, classes=100, key="fine_labels")
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01%s"
    b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89%stb"
)
"""An array of bytes, of a shape and with bytes that are to be put in."""


def made(records: int, classes: int = 10, seed: int = 0) -> tuple[Any, Any]:
    """Classes, and images (records, 3, 32, 32)."""
    drawn = np.random.default_rng(seed)
    return drawn.integers(0, classes, records), drawn.integers(0, 256, (records, 3, 32, 32), np.uint8)


def write_binary(path: Path, records: int, classes: int = 10, head: bytes = b"", seed: int = 0) -> tuple[Any, Any]:
    """Records: a byte of class (after `head`), then 1024 red, 1024 green and 1024 blue bytes, row by row."""
    labels, images = made(records, classes, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(head + bytes([label]) + image.tobytes() for label, image in zip(labels, images)))
    return labels, images


def write_pickle(
    path: Path, records: int, classes: int = 10, key: str = "labels", seed: int = 0, **parts: bytes
) -> tuple[Any, Any]:
    """A batch; `parts` are operations that take the place of its `data` or of its labels (`classes`)."""
    labels, images = made(records, classes, seed)
    pixels = images.reshape(records, -1)
    entries = {
        "batch_label": _word(b"training batch 1 of 5"),
        key: parts.get("labels") or _list([_number(int(label)) for label in labels]),
        "data": parts.get("data") or array(pixels.shape, pixels.tobytes()),
        "filenames": _list([_word(b"leptodactylus_s_%06d.png" % number) for number in range(records)]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickled({name.encode(): operations for name, operations in entries.items()}))
    return labels, images


def pickled(entries: dict[bytes, bytes]) -> bytes:
    """A dict of words and what operations make."""
    return b"\x80\x02}q\x01(" + b"".join(_word(key) + made for key, made in entries.items()) + b"u."


def array(shape: tuple[int, ...], content: bytes) -> bytes:
    """The operations that make an array of bytes."""
    sizes = b"".join(map(_number, shape)) + (b"\x85", b"\x86", b"\x87")[len(shape) - 1]
    return ARRAY % (sizes, b"T" + struct.pack("<i", len(content)) + content)


def _list(operations: list[bytes]) -> bytes:
    return b"]q\x05(" + b"".join(operations) + b"e"


def _word(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text + b"q\x02"


def _number(value: int) -> bytes:
    forms = {b"K": "<B", b"M": "<H", b"J": "<i"}
    code = b"K" if 0 <= value < 256 else b"M" if 0 <= value < 65536 else b"J"
    return code + struct.pack(forms[code], value)
