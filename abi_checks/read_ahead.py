"""The facts of many files on disk, read by two processes at once.

Reading an object is mostly decoding, which Python does one thread at a time. A child reads from the last file backwards
while this process reads from the first one on, until they meet; so they end together whatever the files hold. What the
child found lies in a file without a name, in the form of the scan cache: symbols are decoded when they are first asked
for.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import signal
import struct
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NoReturn

from abi_checks.bytesource import FileSource
from abi_checks.cache_rows import Row, object_of_row, row_of_object
from abi_checks.cached_symbols import CachedSymbols, pack_symbols
from abi_checks.facts import Gathered, ObjectFacts, ReadFacts
from abi_checks.sources.interface import FoundFile, SourceObject, Unreadable

WORTH_SHARING = 64
"""Fewer files than these are read before a second process has started."""
_FOOTER = struct.Struct("<QQ")
"""Where the rows lie in the child's file, and their length."""
_OURS, _THEIRS = 0, 1


class ReadAhead:
    """As :class:`ReadFacts` for the files of a folder; a context manager, after which there is no child.

    ``files`` are the ones that will be asked for, in that order. Whatever becomes of the child, each is answered: what
    it has not read is read here.
    """

    def __init__(self, root: str, files: Sequence[FoundFile]) -> None:
        self._read = ReadFacts(root)
        self._files = files
        self._numbers: dict[str, int] = {}
        self._child = 0
        self._output = -1
        self._rows: Mapping[int, Row] = {}
        self._data: mmap.mmap | None = None
        if len(files) < WORTH_SHARING or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
            return  # A child of a process with threads could wait for ever for what one of them held.
        self._numbers = {file.path: number for number, file in enumerate(files)}
        with contextlib.suppress(OSError):  # where there can be no further process or file, all is read here
            # The files that each process has come to. Where both take one at the same moment, both read it, or, because
            # the child sees that and leaves it, this one does.
            self._positions = memoryview(mmap.mmap(-1, 8)).cast("I")
            self._positions[_THEIRS] = len(files)
            self._output = os.memfd_create("facts")
            self._child = os.fork()
            if not self._child:
                self._read_backwards()

    def __call__(self, item: SourceObject | Unreadable) -> Gathered:
        """The facts of one object."""
        if not isinstance(item, SourceObject) or (number := self._numbers.get(item.path)) is None:
            return self._read(item)
        if self._child:
            self._positions[_OURS] = number
            if self._positions[_THEIRS] > number:
                return self._read(item)
            self._collect()
        row = self._rows.get(number)
        if row is None or self._data is None:
            return self._read(item)
        match row:
            case (facts, int(offset), int(size)):
                return object_of_row(facts, CachedSymbols(self._data, offset, size), item, self._read.root)
            case (str(reason),):
                return Unreadable(item.path, reason)
            case _:
                return None

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._end_of_child()
        if self._output >= 0:
            os.close(self._output)

    def _read_backwards(self) -> NoReturn:
        """The child: write what is read, and end."""
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted parent ends it
            rows: dict[int, Row] = {}
            with open(self._output, "wb", closefd=False) as output:
                for number in reversed(range(len(self._files))):
                    self._positions[_THEIRS] = number
                    if self._positions[_OURS] >= number:
                        break
                    # What can't be opened is left to the parent, which says so.
                    with contextlib.suppress(OSError):
                        found = self._found(self._files[number])
                        if isinstance(found, ObjectFacts):
                            symbols = pack_symbols(found.elf.symbols)
                            rows[number] = (row_of_object(found), output.tell(), len(symbols))
                            output.write(symbols)
                        else:
                            rows[number] = (found.reason,) if found else ()
                at, packed = output.tell(), marshal.dumps(rows)
                output.write(packed + _FOOTER.pack(at, len(packed)))
            code = 0
        finally:
            # Nothing of the parent may be flushed, closed or printed twice. An error shows when the parent reads on.
            os._exit(code)

    def _found(self, file: FoundFile) -> Gathered:
        with FileSource(os.path.join(self._read.root, file.path)) as data:
            return self._read(SourceObject(file.path, data))

    def _collect(self) -> None:
        """Wait for the child and take what it has read."""
        if self._end_of_child() == 0:
            self._data = mmap.mmap(self._output, 0, access=mmap.ACCESS_READ)
            at, length = _FOOTER.unpack_from(self._data, len(self._data) - _FOOTER.size)
            self._rows = marshal.loads(self._data[at : at + length])

    def _end_of_child(self) -> int:
        try:
            status = os.waitpid(self._child, 0)[1]
        except ChildProcessError:  # a caller that ignores SIGCHLD: how it ended is not known
            status = -1
        self._child = 0
        return status
