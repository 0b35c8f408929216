"""The members of a wheel, read forwards from any source of bytes and without trusting what the archive says of itself.

Nothing is ever written under a member's name. A member is inflated once, in order, into memory or into a file without
a name, with bounds on every size. What an installer would refuse or what can't be judged is listed in ``refused``.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, BinaryIO, Protocol, cast

from isal import isal_zlib

from abi_checks.bytesource import BufferSource, ByteSource
from abi_checks.errors import SourceError

MAX_DIRECTORY_BYTES = 16 << 20
"""A central directory larger than this is refused; torch's, with 12,000 members, has 1.4 MB."""
MAX_MEMBER_BYTES = (4 << 30) - 1
"""Larger members are refused: x86-64 code models end at 2 GiB, and the largest library we know of has 1.1 GB."""
MAX_EXPANSION = 200
"""How many times its compressed size a member over 16 MiB may have; device code compresses 2 to 10 times."""
MEMORY_LIMIT = 8 << 20
"""Members up to this size are kept in memory, larger ones in a file without a name."""
_STEP, _PIECE = 1 << 17, 1 << 18
"""Bytes read, and inflated, at a time: so few that they are still in the processor's cache when they are written, and
that their memory is used again rather than asked for anew. With 1 and 4 MiB, a wheel takes a fifth longer."""
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # APPNOTE.TXT 6.3.10, section 4.3.7
_FLAG_ENCRYPTED = 0x1
_InflateError = cast(type[Exception], isal_zlib.error)  # isal's stub calls it an instance


class ArchiveBytes(ByteSource, Protocol):
    """Bytes of a whole wheel, which can also be streamed."""

    @property
    def fetched(self) -> int:
        """Bytes transferred from a server so far."""

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes ``start .. end`` in order, in pieces of a few MiB at most."""


class LocalBytes:
    """A wheel on disk, or in any other cheap source of bytes."""

    fetched = 0

    def __init__(self, source: ByteSource) -> None:
        self.size = source.size
        self.read = source.read

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """See :class:`ArchiveBytes`."""
        for offset in range(start, end, _STEP):
            yield self.read(offset, min(_STEP, end - offset))


class MemberError(Exception):
    """A member that can't be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file of the archive, as its central directory describes it; sizes and offsets in bytes."""

    name: str
    size: int
    compressed_size: int
    crc: int
    method: int
    header_offset: int
    end: int
    """Where the next member or the central directory starts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A member that is not read, and why."""

    name: str
    why: str


class _Window(io.RawIOBase):
    """The seekable file that zipfile wants; it only ever reads the end of the archive and its directory."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        if start + offset < 0:
            raise OSError(f"seek to {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._source.size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if length > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(
                f"its central directory has {length} bytes, more than the {MAX_DIRECTORY_BYTES} that are read"
            )
        data = self._source.read(self._position, length)
        self._position += len(data)
        return data


@dataclass(frozen=True, slots=True)
class Directory:
    """What an archive holds: its readable members in the order in which they lie in the file, and the others."""

    members: tuple[Member, ...]
    refused: tuple[Refusal, ...]


def read_directory(source: ArchiveBytes, label: str) -> Directory:
    """The members of the archive in ``source``; ``label`` names it in messages.

    Raises SourceError where it is no zip archive, is cut short, or has members that share bytes (the way to make a
    small file inflate to petabytes).
    """
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Window(source))) as opened:
            infos, directory = opened.infolist(), opened.start_dir
    except (zipfile.BadZipFile, zipfile.LargeZipFile, OSError, ValueError, struct.error, NotImplementedError) as error:
        why = str(error) or type(error).__name__
        raise SourceError(
            f"{label}: not a whole zip archive ({why}): cut short, or not a wheel; download it again"
        ) from error
    if not infos:
        raise SourceError(f"{label}: an archive without any member; download it again")
    infos.sort(key=lambda info: info.header_offset)
    ends = [info.header_offset for info in infos[1:]] + [directory]
    names = Counter(info.filename for info in infos)
    members: list[Member] = []
    refused: list[Refusal] = []
    for info, end in zip(infos, ends, strict=True):
        if info.header_offset < 0 or info.header_offset + _LOCAL_HEADER.size + info.compress_size > end:
            raise SourceError(
                f"{label}: member {info.filename!r} overlaps the next one: a damaged or a malicious archive"
            )
        why = _refusal(info) or ("the archive has this name more than once" if names[info.filename] > 1 else "")
        if why:
            refused.append(Refusal(info.filename, why))
        elif not info.is_dir():
            place = (info.header_offset, end)
            members.append(
                Member(info.filename, info.file_size, info.compress_size, info.CRC, info.compress_type, *place)
            )
    return Directory(tuple(members), tuple(refused))


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
                yield inflater.decompress(data, _PIECE)
                data = inflater.unconsumed_tail
        while not inflater.eof and (rest := inflater.decompress(b"", _PIECE)):
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


def _refusal(info: zipfile.ZipInfo) -> str:
    """Why a member is not read, or ""."""
    # zipfile cuts names at a NUL and turns the system's separator into "/"; the original is what an installer sees.
    name = info.orig_filename
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or name[1:2] == ":":
        return "its name leads outside the folder it would be installed in"
    mode = info.external_attr >> 16
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is a symbolic link or a device, which wheels can't hold"
    if info.flag_bits & _FLAG_ENCRYPTED:
        return "it is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"its compression method is {info.compress_type}, and installers know 0 (stored) and 8 (deflate)"
    if info.file_size > MAX_MEMBER_BYTES:
        return f"it has {info.file_size} bytes, more than the {MAX_MEMBER_BYTES} that are read"
    if info.file_size > 16 << 20 and info.file_size > MAX_EXPANSION * info.compress_size:
        return f"{info.compress_size} bytes would inflate to {info.file_size}, more than {MAX_EXPANSION} times as many"
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        return f"it is stored, with {info.compress_size} bytes for {info.file_size}"
    return ""


def _data_offset(start: bytes, member: Member) -> int:
    """Where a member's data start, counted from its local header, which ``start`` begins with."""
    if len(start) < _LOCAL_HEADER.size:
        raise MemberError("its header is cut short")
    fields = _LOCAL_HEADER.unpack_from(start)
    if fields[0] != b"PK\x03\x04":
        raise MemberError("there is no header where the archive says it lies")
    if fields[2] & _FLAG_ENCRYPTED:
        raise MemberError("it is encrypted")
    offset = _LOCAL_HEADER.size + int(fields[9]) + int(fields[10])
    if member.header_offset + offset + member.compressed_size > member.end:
        raise MemberError("its data run into the next member")
    return offset
