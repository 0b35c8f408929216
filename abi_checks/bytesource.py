"""Random access to the bytes of one file, wherever the file lies."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol


class ByteSource(Protocol):
    """Bytes that can be read at any offset; what lies past the end is simply not returned."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """The bytes ``offset .. offset + length``, fewer where the source ends before; never raises for the range."""


class BufferSource:
    """Bytes already in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`ByteSource`."""
        if offset < 0 or length <= 0:
            return b""
        return self._data[offset : offset + length]


class FileSource:
    """A file on disk, read with pread so that no position is shared; a context manager that closes it.

    Raises OSError when the file can't be opened.
    """

    def __init__(self, path: Path | str) -> None:
        # O_NONBLOCK: a FIFO with a library's name must not hang the scan.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`ByteSource`; raises OSError on a real I/O error."""
        if offset < 0 or offset >= self.size or length <= 0:
            return b""
        return os.pread(self._descriptor, min(length, self.size - offset), offset)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
