"""Arrays of bytes in Python's pickles, as CIFAR is published, read without running the pickle: a name in it is compared
with those that numpy writes and never looked up, so nothing is imported and nothing called. Knows files and arrays.

A pickle is a list of operations on a stack. Those that make plain values (numbers, words, lists, tuples, dicts) are
carried out here; of those that name, call and fill in objects, only the ones that numpy writes for an array of bytes:

    _reconstruct(ndarray, (0,), b"b")                       an empty array
    dtype("u1", False, True), filled in with (3, "|", ...)  bytes
    array, filled in with (1, shape, dtype, in columns, bytes)
    encode("...", "latin1")                                 bytes, as Python 3 writes them for Python 2
"""

from __future__ import annotations

import mmap
import struct
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.picture import BadFile

OPERATIONS = 1_000_000
"""More make no dataset of ours (CIFAR-100 has 0.3 million), but fill the memory."""
AGAIN = "take the archive from those who publish it, and unpack it again"


class Known(Enum):
    """What may be named, and the one dtype that may be made."""

    RECONSTRUCT = "_reconstruct"
    NDARRAY = "ndarray"
    DTYPE = "dtype"
    ENCODE = "encode"
    BYTES = "bytes"


NAMES = {
    "numpy.core.multiarray _reconstruct": Known.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": Known.RECONSTRUCT,
    "numpy ndarray": Known.NDARRAY,
    "numpy dtype": Known.DTYPE,
    "_codecs encode": Known.ENCODE,
}
FILLED = [(3, sign, None, None, None, -1, -1, 0) for sign in ("|", b"|")]


class Stored:
    """An array on its way."""

    values: NDArray[np.uint8] | None = None


_MARK = object()
_PLAIN = {b"N": None, b"\x88": True, b"\x89": False}
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i"}
_LENGTHS_OF_BYTES = {b"U": "<B", b"T": "<i", b"C": "<B", b"B": "<I", b"\x8e": "<Q"}
_LENGTHS_OF_WORDS = {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}
_SKIPPED = {b"\x80": 1, b"\x95": 8}
"""The protocol's number, and frames."""
_PUTS, _GETS = {b"q": "<B", b"r": "<I"}, {b"h": "<B", b"j": "<I"}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


def read_pickle(path: str) -> Any:
    """The value in a file. An array that lies there as it is stays there: what is returned is mapped into memory."""
    reader = _Reader(path)
    try:
        return reader.run()
    except BadFile:
        raise
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error):
        raise BadFile(path, f"is damaged at byte {reader.at}: {AGAIN}") from None


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0
        """Bytes made of words."""
        with open(path, "rb") as file:
            if not file.read(1):
                raise BadFile(path, f"the file is empty: {AGAIN}")
            self.file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def run(self) -> Any:
        for _ in range(OPERATIONS):
            start = self.at
            code = self._take(1)
            if code == b".":
                (made,) = self.stack
                return self._value(made)
            if not (self._make(code) or self._gather(code) or self._object(code)):
                raise BadFile(self.path, f"is no pickle of an array at byte {start} ({ascii(code)[1:]}): {AGAIN}")
        raise BadFile(self.path, f"has more than {OPERATIONS} operations, and an array needs a few: {AGAIN}")

    # -- bytes of the file -------------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        found = self.file[self.at : self._past(count)]
        self.at += count
        return found

    def _past(self, count: int) -> int:
        """The byte after the next `count`."""
        if not 0 <= count <= len(self.file) - self.at:
            raise BadFile(self.path, f"is cut off at byte {self.at} of {len(self.file)}, where {count} belong: {AGAIN}")
        return self.at + count

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self.file.find(b"\n", self.at, self.at + 256)
        if end < 0:
            raise BadFile(self.path, f"has no name at byte {self.at}: {AGAIN}")
        return self._take(end + 1 - self.at)[:-1].decode("latin-1")

    # -- operations --------------------------------------------------------------------------------------------------

    def _make(self, code: bytes) -> bool:
        """Values, and what was made before."""
        push = self.stack.append
        if code in _NUMBERS:
            push(self._number(_NUMBERS[code]))
        elif code in _LENGTHS_OF_BYTES:
            count = self._number(_LENGTHS_OF_BYTES[code])
            end = self._past(count)
            if count < 256:
                push(self._take(count))
            else:
                push(memoryview(self.file)[self.at : end])
                self.at = end
        elif code in _LENGTHS_OF_WORDS:
            push(self._take(self._number(_LENGTHS_OF_WORDS[code])).decode())
        elif code in _PUTS:
            self.memo[self._number(_PUTS[code])] = self.stack[-1]
        elif code == b"\x94":
            self.memo[len(self.memo)] = self.stack[-1]
        elif code in _GETS:
            push(self.memo[self._number(_GETS[code])])
        elif code in _SKIPPED:
            self._take(_SKIPPED[code])
        elif code in _PLAIN:
            push(_PLAIN[code])
        else:
            return False
        return True

    def _gather(self, code: bytes) -> bool:
        """Lists, tuples and dicts."""
        if code == b"(":
            self.stack.append(_MARK)
        elif code in b"])}":
            self.stack.append({b"]": list, b")": tuple, b"}": dict}[code]())
        elif code == b"t":
            self.stack.append(tuple(self._marked()))
        elif code in _TUPLES:
            self.stack.append(tuple(self._popped(_TUPLES[code])))
        elif code in b"ae":
            values = self._marked() if code == b"e" else self._popped(1)
            self._top(list).extend(map(self._value, values))
        elif code in b"us":
            values = self._marked() if code == b"u" else self._popped(2)
            for key, value in zip(values[::2], values[1::2], strict=True):
                if not isinstance(key, (bytes, str)):
                    raise ValueError
                self._top(dict)[key] = self._value(value)
        else:
            return False
        return True

    def _object(self, code: bytes) -> bool:
        """Names, calls and fillings."""
        if code == b"c":
            self._name(self._line(), self._line())
        elif code == b"\x93":
            self._name(*self._popped(2))
        elif code == b"R":
            name, values = self._popped(2)
            self.stack.append(self._called(name, values))
        elif code == b"b":
            filling = self.stack.pop()
            self._fill(self.stack[-1], filling)
        else:
            return False
        return True

    def _name(self, module: Any, name: Any) -> None:
        full = f"{module} {name}" if isinstance(module, str) and isinstance(name, str) else ""
        if full not in NAMES:
            shown = ascii(full.replace(" ", ".", 1)[:100])[1:-1] or "what is no word"
            raise BadFile(self.path, f"names {shown}, which no array of bytes needs; nothing of it was run: {AGAIN}")
        self.stack.append(NAMES[full])

    def _called(self, name: Any, values: Any) -> Any:
        if not isinstance(values, tuple):
            raise ValueError
        if name is Known.RECONSTRUCT and values == (Known.NDARRAY, (0,), b"b"):
            return Stored()
        if name is Known.DTYPE and len(values) == 3 and values[1:] == (False, True):
            if values[0] not in ("u1", b"u1"):
                shown = ascii(values[0][:20]) if isinstance(values[0], (str, bytes)) else "another type"
                raise BadFile(self.path, f"has an array of {shown}, and CIFAR's are of bytes ('u1'): {AGAIN}")
            return Known.BYTES
        if name is Known.ENCODE and values[1:] in (("latin1",), (b"latin1",)) and isinstance(values[0], str):
            self.encoded += len(values[0])
            if self.encoded > len(self.file):
                raise BadFile(self.path, f"encodes more bytes than it has ({len(self.file)}): {AGAIN}")
            return values[0].encode("latin-1")
        shown = name.value if isinstance(name, Known) else "what has no name"
        raise BadFile(self.path, f"calls {shown} as no array of bytes does; nothing of it was run: {AGAIN}")

    def _fill(self, made: Any, filling: Any) -> None:
        if made is Known.BYTES and filling in FILLED:
            return
        if not isinstance(made, Stored) or made.values is not None or not isinstance(filling, tuple):
            raise BadFile(self.path, f"fills in what is no array of bytes at byte {self.at}: {AGAIN}")
        version, sizes, dtype, columns, content = filling
        whole = isinstance(sizes, tuple) and len(sizes) < 9 and all(type(size) is int and size >= 0 for size in sizes)
        if version != 1 or dtype is not Known.BYTES or not whole:
            raise BadFile(self.path, f"fills in an array at byte {self.at} as numpy does not: {AGAIN}")
        if not isinstance(content, (bytes, memoryview)) or len(content) != prod(sizes):
            held = len(content) if isinstance(content, (bytes, memoryview)) else "no"
            raise BadFile(self.path, f"has an array of {' x '.join(map(str, sizes))} and {held} bytes for it: {AGAIN}")
        made.values = np.frombuffer(content, np.uint8).reshape(sizes, order="F" if columns else "C")

    # -- the stack ---------------------------------------------------------------------------------------------------

    def _marked(self) -> list[Any]:
        """What was put on the stack after the last mark."""
        found: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def _popped(self, count: int) -> list[Any]:
        return [self.stack.pop() for _ in range(count)][::-1]

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError
        return self.stack[-1]

    def _value(self, made: Any) -> Any:
        """An array that was to be filled in, as one."""
        if isinstance(made, Stored):
            if made.values is None:
                raise ValueError
            return made.values
        return made
