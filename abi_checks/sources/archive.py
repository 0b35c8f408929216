"""The directory of a wheel: which members it says it has, from any source of bytes and without trusting it.

What an installer would refuse or what can't be judged is listed in ``refused``.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, cast

from abi_checks.bytesource import ByteSource
from abi_checks.errors import SourceError

MAX_DIRECTORY_BYTES = 16 << 20
"""A central directory larger than this is refused; torch's, with 12,000 members, has 1.4 MB."""
MAX_MEMBER_BYTES = (4 << 30) - 1
"""Larger members are refused: x86-64 code models end at 2 GiB, and the largest library we know of has 1.1 GB."""
MAX_EXPANSION = 200
"""How many times its compressed size a member over 16 MiB may have; device code compresses 2 to 10 times."""
STEP = 1 << 17
"""Bytes of a local wheel read at a time; see :data:`abi_checks.sources.members.PIECE`."""
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""APPNOTE.TXT 6.3.10, section 4.3.7."""
FLAG_ENCRYPTED = 0x1


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
        for offset in range(start, end, STEP):
            yield self.read(offset, min(STEP, end - offset))


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
        if info.header_offset < 0 or info.header_offset + LOCAL_HEADER.size + info.compress_size > end:
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
    if info.flag_bits & FLAG_ENCRYPTED:
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
