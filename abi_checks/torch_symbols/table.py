"""The table file: names in sorted segments, each compressed alone, so that a question opens only a few of them.

Layout: a magic number, the length of the header (32 bits, little-endian), the header (JSON), the segments. A segment is
an xz stream of its names, each as the number of bytes it shares with the name before (one byte), the rest, and a NUL;
then a column of the low and one of the high bytes of each name's place in the header's list of masks. Bit N of a mask
stands for release N.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from abi_checks.errors import SourceError

FILE = Path(__file__).with_name("symbols.bin")
_MAGIC = b"TORCHSYM"
_LENGTH = struct.Struct("<I")
SEGMENT_NAMES = 512
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]

# Names whose outermost namespace is torch's (Itanium C++ ABI, 5.1: special names, thunks, local names, qualifiers), its
# pybind11 casters, its CPython classes, and its C interfaces.
_COVERED = re.compile(
    rb"_Z(?:T[VTISWHC]|GV|GR|T[hvc](?:n?\d+_)+)?Z*N[KVrRO]*(?:3c10|2at|5torch|6caffe2)"
    rb"|_ZNK?8pybind116detail\d+type_casterIN(?:3c10|2at|5torch)"
    rb"|(?:_Z\d+)?THC?P[A-Z]|aoti_torch_|torch_"
)


def covers(name: bytes) -> bool:
    """Whether the table says anything about a (mangled) name; others are some other library's."""
    return _COVERED.match(name) is not None


def covered(names: Iterable[bytes]) -> set[bytes]:
    """Those of many names that the table says anything about."""
    return set(filter(_COVERED.match, names))


@dataclass(frozen=True, slots=True)
class Release:
    """One torch release: its version, and the wheel it was read from."""

    version: str
    wheel: str
    sha256: str


class SymbolTable:
    """The table in one file, opened when it is first asked something. Raises SourceError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._data = path.read_bytes()
            start = len(_MAGIC) + _LENGTH.size
            if not self._data.startswith(_MAGIC):
                raise ValueError("it is not a table of torch symbols")
            (length,) = _LENGTH.unpack_from(self._data, len(_MAGIC))
            header = json.loads(self._data[start : start + length])
            self.releases = tuple(Release(**row) for row in header["releases"])
            self._masks = [int(mask, 16) for mask in header["masks"]]
            self._firsts = [first.encode() for first, _, _ in header["segments"]]
            self._places: list[tuple[int, int, int]] = []
            at = start + length
            for _, count, size in header["segments"]:
                self._places.append((at, count, size))
                at += size
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise SourceError(
                f"{path}: cannot read the table of torch symbols: {error}; install the package again"
            ) from error
        self._segments: dict[int, dict[bytes, int]] = {}

    @property
    def versions(self) -> tuple[str, ...]:
        """The releases, oldest first."""
        return tuple(release.version for release in self.releases)

    def masks(self, names: Iterable[bytes]) -> dict[bytes, int]:
        """Name → the releases that export it (bit N for release N; 0 for none). Names not covered are left out."""
        return {name: self._mask(name) for name in names if covers(name)}

    def releases_exporting(self, names: Iterable[bytes]) -> tuple[str, ...]:
        """The releases that export all of the names that the table covers, oldest first."""
        common = (1 << len(self.releases)) - 1
        for mask in self.masks(names).values():
            common &= mask
        return self.select(common)

    def select(self, mask: int) -> tuple[str, ...]:
        """The releases in a mask, oldest first."""
        return tuple(version for bit, version in enumerate(self.versions) if mask >> bit & 1)

    def exported(self, release: Release) -> frozenset[bytes] | None:
        """All names the table has for exactly this release and wheel; None where it isn't in the table."""
        if release not in self.releases:
            return None
        bit = 1 << self.releases.index(release)
        segments = map(self._segment, range(len(self._places)))
        return frozenset(name for segment in segments for name, mask in segment.items() if mask & bit)

    def _mask(self, name: bytes) -> int:
        number = bisect_right(self._firsts, name) - 1
        if number < 0:
            return 0
        if number not in self._segments:
            self._segments[number] = self._segment(number)
        return self._segments[number].get(name, 0)

    def _segment(self, number: int) -> dict[bytes, int]:
        at, count, size = self._places[number]
        try:
            data = lzma.decompress(self._data[at : at + size], format=lzma.FORMAT_XZ)
            names = _unfold(data[: -2 * count], count)
            low, high = data[-2 * count : -count], data[-count:]
            return {name: self._masks[a | b << 8] for name, a, b in zip(names, low, high, strict=True)}
        except (lzma.LZMAError, ValueError, IndexError) as error:
            raise SourceError(
                f"{self._path}: segment {number} is damaged: {error}; install the package again"
            ) from error


def write_table(path: Path, releases: Sequence[Release], exported: Mapping[str, Iterable[bytes]]) -> None:
    """Write the table of ``exported`` (version → names); the same input makes the same bytes."""
    masks: dict[bytes, int] = {}
    for bit, release in enumerate(releases):
        for name in exported[release.version]:
            masks[name] = masks.get(name, 0) | 1 << bit
    names = sorted(masks)
    distinct = sorted(set(masks.values()))
    numbers = {mask: number for number, mask in enumerate(distinct)}
    segments: list[list[object]] = []
    body = bytearray()
    for start in range(0, len(names), SEGMENT_NAMES):
        part = names[start : start + SEGMENT_NAMES]
        columns = [numbers[masks[name]] for name in part]
        data = _fold(part) + bytes(number & 0xFF for number in columns) + bytes(number >> 8 for number in columns)
        packed = lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=_FILTERS)
        segments.append([part[0].decode(), len(part), len(packed)])
        body += packed
    rows = [{"version": release.version, "wheel": release.wheel, "sha256": release.sha256} for release in releases]
    header = json.dumps({"releases": rows, "masks": [f"{mask:x}" for mask in distinct], "segments": segments}).encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(_MAGIC + _LENGTH.pack(len(header)) + header + body)
    beside.replace(path)


def _fold(names: Iterable[bytes]) -> bytes:
    folded = bytearray()
    before = b""
    for name in names:
        pairs = zip(before, name, strict=False)
        shared = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(name)))
        shared = min(shared, 255)
        folded.append(shared)
        folded += name[shared:] + b"\0"
        before = name
    return bytes(folded)


def _unfold(data: bytes, count: int) -> list[bytes]:
    names: list[bytes] = []
    name = b""
    at = 0
    for _ in range(count):
        end = data.index(0, at + 1)
        name = name[: data[at]] + data[at + 1 : end]
        names.append(name)
        at = end + 1
    return names


@cache
@lru_cache(maxsize=1)
def shipped_table() -> SymbolTable:
    """The table that this package ships."""
    return SymbolTable(FILE)
