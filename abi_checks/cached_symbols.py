"""The symbols of an object as the scan cache keeps them: read when they are first asked for."""

from __future__ import annotations

import marshal
import struct
import zlib
from collections.abc import Mapping
from functools import cached_property
from mmap import mmap
from typing import Any

from abi_checks.elf_facts import DynamicSymbols, Reference
from abi_checks.errors import SourceError

_HEAD = struct.Struct("<III")
"""CRC-32 and length of what is undefined, CRC-32 of what is defined; both follow, in this order."""


class CachedSymbols:
    """``size`` bytes at ``offset`` of a cache file, as :func:`pack_symbols` made them; see :class:`DynamicSymbols`.

    Asking for anything raises SourceError where the cache file is damaged.
    """

    def __init__(self, data: mmap, offset: int, size: int) -> None:
        self._data = data
        self._offset = offset
        self._size = size

    @cached_property
    def undefined(self) -> tuple[Reference, ...]:
        """See :class:`DynamicSymbols`."""
        checksum, length, _ = _HEAD.unpack_from(self._data, self._offset)
        found: tuple[Reference, ...] = self._part(0, length, checksum)
        return found

    @property
    def defined(self) -> frozenset[bytes]:
        """See :class:`DynamicSymbols`."""
        return self._defined[0]

    @property
    def versions(self) -> Mapping[bytes, tuple[tuple[bytes, bool], ...]]:
        """See :class:`DynamicSymbols`."""
        return self._defined[1]

    def __eq__(self, other: object) -> bool:
        """Equal symbols are equal, in whichever form."""
        return (self.undefined, self.defined, self.versions) == tuple(
            getattr(other, name, None) for name in ("undefined", "defined", "versions")
        )

    __hash__ = None  # type: ignore[assignment]  # as that of Symbols, which hold a mapping

    def packed(self) -> bytes:
        """The bytes in the cache file."""
        return self._data[self._offset : self._offset + self._size]

    @cached_property
    def _defined(self) -> tuple[frozenset[bytes], Mapping[bytes, tuple[tuple[bytes, bool], ...]]]:
        _, start, checksum = _HEAD.unpack_from(self._data, self._offset)
        names, versions = self._part(start, self._size - _HEAD.size, checksum)
        return frozenset(names), versions

    def _part(self, start: int, end: int, checksum: int) -> Any:
        base = self._offset + _HEAD.size
        data = self._data[base + start : base + end]
        if zlib.crc32(data) != checksum:
            raise SourceError("the scan cache is damaged: remove it, or use --no-cache")
        return marshal.loads(data)


def pack_symbols(symbols: DynamicSymbols) -> bytes:
    """The bytes that :class:`CachedSymbols` reads."""
    if isinstance(symbols, CachedSymbols):
        return symbols.packed()
    undefined = marshal.dumps(symbols.undefined)
    # A tuple, since marshal sorts sets.
    defined = marshal.dumps((tuple(symbols.defined), dict(symbols.versions)))
    return _HEAD.pack(zlib.crc32(undefined), len(undefined), zlib.crc32(defined)) + undefined + defined
