"""A file that counts the bytes read from it."""

from __future__ import annotations

import io
import os


class CountingFile(io.RawIOBase):
    """A file to read. Its position is its own, not the operating system's, so that worker processes that were started
    with the file open do not move each other's."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = path
        self.size = os.stat(path).st_size
        self.count = 0
        """Bytes read so far."""
        self._descriptor = os.open(path, os.O_RDONLY)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = start + offset
        return self._position

    def read_at(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on; fewer is an error."""
        data = b""
        while len(data) < count:
            more = os.pread(self._descriptor, count - len(data), offset + len(data))
            if not more:
                raise EOFError(f"the file ends {count - len(data)} bytes early")
            data = data + more if data else more
        self.count += len(data)
        return data

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        wanted = left if count is None or count < 0 else min(count, left)
        data = self.read_at(self._position, wanted) if wanted else b""
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
