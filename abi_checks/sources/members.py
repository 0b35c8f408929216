"""The content of a wheel's members, read forwards and given out only where it is what the wheel's directory says.

Nothing is ever written under a member's name. A member is inflated once, in order, into memory or into a file without
a name, with bounds on every size.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, cast

from isal import isal_zlib

from abi_checks.bytesource import BufferSource, ByteSource
from abi_checks.sources.archive import FLAG_ENCRYPTED, LOCAL_HEADER, ArchiveBytes, Member

MEMORY_LIMIT = 8 << 20
"""Members up to this size are kept in memory, larger ones in a file without a name."""
PIECE = 1 << 18
"""Bytes inflated at a time, from half as many read: so few that they are still in the processor's cache when they are
written, and that their memory is used again rather than asked for anew. With 4 and 1 MiB, a wheel takes a fifth
longer."""
_InflateError = cast(type[Exception], isal_zlib.error)  # isal's stub calls it an instance


class MemberError(Exception):
    """A member that can't be read; the text says why."""


def member_head(source: ArchiveBytes, member: Member, length: int) -> bytes:
    """The first ``length`` bytes of a member (fewer where it is shorter), at the cost of one small read."""
    start = source.read(member.header_offset, min(4096, member.end - member.header_offset))
    skip = _data_offset(start, member)
    if member.method == zipfile.ZIP_STORED:
        return start[skip : skip + min(length, member.size)]
    try:
        return bytes(isal_zlib.decompressobj(wbits=-15).decompress(start[skip:], length))
    except _InflateError as error:
        raise MemberError(f"its compressed data are damaged: {error}") from error


def read_member(source: ArchiveBytes, member: Member, limit: int) -> bytes:
    """A small member as a whole; raises MemberError where it is damaged or has more than ``limit`` bytes."""
    if member.size > limit:
        raise MemberError(f"it has {member.size} bytes, more than the {limit} expected of such a file")
    return b"".join(_inflate(source, member))


def open_member(source: ArchiveBytes, member: Member, store: Store) -> ByteSource:
    """A member's bytes, whole and with the right checksum, valid until ``store`` is used again; raises MemberError.

    The whole member is inflated: linkers put the dynamic section and the section table, where every reader of ELF
    files starts, behind everything else.
    """
    if member.size <= MEMORY_LIMIT:
        return BufferSource(b"".join(_inflate(source, member)))
    return store.keep(_inflate(source, member))


def _inflate(source: ArchiveBytes, member: Member) -> Iterator[bytes]:
    """The member's bytes in order; raises MemberError at the first that is not as the directory says."""
    crc = produced = 0
    for piece in _raw_pieces(source, member):
        produced += len(piece)
        if produced > member.size:
            raise MemberError(f"it inflates to more than the {member.size} bytes that the archive says")
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if produced < member.size:
        raise MemberError(f"it ends after {produced} of {member.size} bytes: cut short")
    if crc != member.crc:
        raise MemberError(f"its checksum is {crc:08x}, and the archive says {member.crc:08x}: damaged")


def _raw_pieces(source: ArchiveBytes, member: Member) -> Iterator[bytes]:
    compressed = _compressed(source, member)
    if member.method == zipfile.ZIP_STORED:
        yield from compressed
        return
    inflater = isal_zlib.decompressobj(wbits=-15)
    try:
        for data in compressed:
            while data and not inflater.eof:
                yield inflater.decompress(data, PIECE)
                data = inflater.unconsumed_tail
        while not inflater.eof and (rest := inflater.decompress(b"", PIECE)):
            yield rest
    except _InflateError as error:
        raise MemberError(f"its compressed data are damaged: {error}") from error


def _compressed(source: ArchiveBytes, member: Member) -> Iterator[bytes]:
    skip, left = -1, member.compressed_size
    for chunk in source.chunks(member.header_offset, member.end):
        if skip < 0:
            skip = _data_offset(chunk, member)
        part = chunk[skip : skip + left]
        skip = max(0, skip - len(chunk))
        left -= len(part)
        yield part
        if not left:
            return


class Store:
    """A file without a name that holds one large member at a time; a context manager that gives its space back.

    The same file serves all members: writing over pages that are already in the page cache takes a third of the time.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self.size = 0

    def keep(self, pieces: Iterable[bytes]) -> ByteSource:
        """The pieces as one source, instead of what was kept before; raises OSError where there is no room."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="abi-check-", buffering=0)  # noqa: SIM115
        self.size = 0
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.pwrite(self._file.fileno(), view, self.size)
                self.size += written
                view = view[written:]
        return self

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`abi_checks.bytesource.ByteSource`."""
        if self._file is None or offset < 0 or offset >= self.size or length <= 0:
            return b""
        return os.pread(self._file.fileno(), min(length, self.size - offset), offset)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()


def _data_offset(start: bytes, member: Member) -> int:
    """Where a member's data start, counted from its local header, which ``start`` begins with."""
    if len(start) < LOCAL_HEADER.size:
        raise MemberError("its header is cut short")
    fields = LOCAL_HEADER.unpack_from(start)
    if fields[0] != b"PK\x03\x04":
        raise MemberError("there is no header where the archive says it lies")
    if fields[2] & FLAG_ENCRYPTED:
        raise MemberError("it is encrypted")
    offset = LOCAL_HEADER.size + int(fields[9]) + int(fields[10])
    if member.header_offset + offset + member.compressed_size > member.end:
        raise MemberError("its data run into the next member")
    return offset
