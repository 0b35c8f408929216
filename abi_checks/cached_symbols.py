"""The symbols of an object as the scan cache keeps them: read when they are first asked for."""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Mapping
from functools import cached_property
from mmap import mmap

from abi_checks.elf_facts import DynamicSymbols, Reference, Symbols
from abi_checks.errors import SourceError


class CachedSymbols:
    """``size`` bytes at ``offset`` of a cache file, as :func:`pack_symbols` made them; see :class:`DynamicSymbols`.

    Asking for anything raises SourceError where the cache file is damaged.
    """

    def __init__(self, data: mmap, offset: int, size: int) -> None:
        self._data = data
        self._offset = offset
        self._size = size

    @property
    def undefined(self) -> tuple[Reference, ...]:
        """See :class:`DynamicSymbols`."""
        return self._symbols.undefined

    @property
    def defined(self) -> frozenset[bytes]:
        """See :class:`DynamicSymbols`."""
        return self._symbols.defined

    @property
    def versions(self) -> Mapping[bytes, tuple[tuple[bytes, bool], ...]]:
        """See :class:`DynamicSymbols`."""
        return self._symbols.versions

    def __eq__(self, other: object) -> bool:
        """Equal symbols are equal, in whichever form."""
        return self._symbols == (other._symbols if isinstance(other, CachedSymbols) else other)

    __hash__ = None  # type: ignore[assignment]  # as that of Symbols, which hold a mapping

    def packed(self) -> bytes:
        """The bytes in the cache file."""
        return self._data[self._offset : self._offset + self._size]

    @cached_property
    def _symbols(self) -> Symbols:
        data = self.packed()
        if zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
            raise SourceError("the scan cache is damaged: remove it, or use --no-cache")
        return Symbols(*marshal.loads(data[4:]))


def pack_symbols(symbols: DynamicSymbols) -> bytes:
    """The CRC-32 of the data, and the data."""
    if isinstance(symbols, CachedSymbols):
        return symbols.packed()
    data = marshal.dumps((symbols.undefined, symbols.defined, dict(symbols.versions)))
    return zlib.crc32(data).to_bytes(4, "little") + data
