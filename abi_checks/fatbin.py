"""The device code that one ELF object carries: for which GPU architectures, as machine code, PTX or link-time code.

A fatbin section is a row of fat binaries. Each has a header (magic number, 16-bit version, 16-bit size of the header,
64-bit size of what follows) and then entries: a header that states its own size and that of its payload, and the
payload, compressed or not. Architecture and suffix stand in the entry's header, so payloads are never read.

NVIDIA documents the sections (fatbinary_section.h of the CUDA toolkit) but not this layout. What is used of it was
found by compiling with nvcc 13.0 for plain, ``a`` and ``f`` targets in every compression mode, and agrees with
cuobjdump 13.1 on every library of the environments in tests/abi_checks/test_fatbin.py.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from abi_checks.bytesource import ByteSource
from abi_checks.elf_facts import ElfError, Section

MAGIC = 0xBA55ED50
LINKABLE_SECTION = "__nv_relfatbin"
FATBIN_SECTIONS = (".nv_fatbin", LINKABLE_SECTION)
REGISTERED_SECTION = ".nvFatBinSegment"
"""Where start-up code finds the fat binaries that it registers with the CUDA runtime."""
_HEADER = struct.Struct("<IHHQ")  # magic number, version, header size, size of all entries
# Kind, header size, payload size, code version (minor, major), architecture, flags.
_ENTRY = struct.Struct("<H2xIQ8xHHI8xI")
_ARCHITECTURE_SPECIFIC = 1 << 20
_FAMILY_SPECIFIC = 1 << 21
_SUFFIXES = _ARCHITECTURE_SPECIFIC | _FAMILY_SPECIFIC
# The largest number seen in one library, cuBLASLt 12.8, is 5,868; a damaged file must not keep us busy.
MAX_STEPS = 1 << 17
_Entry = tuple[int, int, int, int, int]
"""Kind, architecture, suffix flags, PTX version (major, minor)."""


class CodeKind(StrEnum):
    """What an entry of a fat binary holds."""

    SM = "sm"
    """Machine code (a cubin) for one architecture."""
    PTX = "ptx"
    """PTX, from which the driver can compile for later architectures."""
    LTO = "lto"
    """NVVM code for the device linker; a driver can't load it as it is."""
    OTHER = "other"
    """A kind that this module doesn't know."""


_PTX = 1
_KINDS = {_PTX: CodeKind.PTX, 2: CodeKind.SM, 8: CodeKind.LTO}


@dataclass(frozen=True, slots=True, order=True)
class DeviceCode:
    """Code of one kind for one architecture."""

    kind: CodeKind
    capability: int
    """Compute capability times ten: 90, 120."""
    suffix: str
    """``a`` (this capability alone), ``f`` (its family) or nothing."""
    ptx_version: tuple[int, int] = (0, 0)
    """Version of the PTX language, (9, 0); of no meaning for other kinds."""

    @property
    def name(self) -> str:
        """As compilers name it: ``sm_90a`` for machine code, ``compute_120f`` for PTX, ``lto_90``."""
        prefix = "compute" if self.kind is CodeKind.PTX else self.kind.value
        return f"{prefix}_{self.capability}{self.suffix}"


@dataclass(frozen=True, slots=True, order=True)
class FatBinaries:
    """All fat binaries of one object that hold code for the same architectures; usually each is a source file's.

    The driver takes each kernel from the fat binary it was compiled into, so an object can serve an architecture in
    some of its kernels and not in others.
    """

    linkable: bool
    """Input of the device linker (section ``__nv_relfatbin``), which a driver never loads."""
    codes: tuple[DeviceCode, ...]
    """One for each entry, sorted."""
    count: int
    """How many such fat binaries there are."""


def read_device_code(data: ByteSource, sections: Iterable[Section]) -> tuple[FatBinaries, ...]:
    """The fat binaries in the given fatbin sections of the object in ``data``, sorted.

    Raises ElfError, with the field at fault, where a section isn't a row of whole fat binaries.
    """
    seen: Counter[tuple[bool, tuple[_Entry, ...]]] = Counter()
    for section in sections:
        if section.name in FATBIN_SECTIONS:
            linkable = section.name == LINKABLE_SECTION
            seen.update((linkable, tuple(sorted(entries))) for entries in _fat_binaries(data, section))
    return tuple(
        sorted(
            FatBinaries(linkable, tuple(sorted(_decoded(*entry) for entry in entries)), count)
            for (linkable, entries), count in seen.items()
        )
    )


def code_names(binaries: Iterable[FatBinaries]) -> tuple[str, ...]:
    """The architectures that an object has code for, sorted.

    As in cuobjdump's listing, relocatable device code counts only where there is no other.
    """
    binaries = tuple(binaries)
    loadable = [group for group in binaries if not group.linkable]
    codes = {code for group in loadable or binaries for code in group.codes}
    return tuple(dict.fromkeys(code.name for code in sorted(codes)))


def _decoded(kind: int, capability: int, flags: int, major: int, minor: int) -> DeviceCode:
    suffix = "a" if flags & _ARCHITECTURE_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
    return DeviceCode(_KINDS.get(kind, CodeKind.OTHER), capability, suffix, (major, minor))


def _fat_binaries(data: ByteSource, section: Section) -> Iterator[list[_Entry]]:
    """The entries of each fat binary in a fatbin section."""
    at, section_end = section.offset, section.offset + section.size
    if section_end > data.size:
        raise ElfError(section.name, f"ends at {section_end}, and the file at {data.size}")
    steps = 0
    while at < section_end:
        header = data.read(at, _HEADER.size)
        if not any(header[:8]):  # padding that a linker put between two aligned fat binaries
            at += 8
            steps = _count(section, steps)
            continue
        if len(header) < _HEADER.size or at + _HEADER.size > section_end:
            raise ElfError(section.name, f"a fat binary's header at {at} is cut short")
        magic, _, header_size, size = _HEADER.unpack(header)
        if magic != MAGIC:
            raise ElfError(section.name, f"{magic:#x} at {at} isn't the magic number of a fat binary, {MAGIC:#x}")
        end = at + header_size + size
        if header_size < _HEADER.size or end > section_end:
            raise ElfError(
                section.name, f"the fat binary at {at} states sizes {header_size} and {size}, past the section's end"
            )
        at += header_size
        entries = []
        while at < end:
            entry = data.read(at, _ENTRY.size)
            if len(entry) < _ENTRY.size:
                raise ElfError(section.name, f"an entry's header at {at} is cut short")
            kind, entry_header_size, payload_size, minor, major, capability, flags = _ENTRY.unpack(entry)
            following = at + entry_header_size + payload_size
            if entry_header_size < _ENTRY.size or following > end:
                raise ElfError(
                    section.name,
                    f"the entry at {at} states sizes {entry_header_size} and {payload_size}, past its fat binary's end",
                )
            version = (major, minor) if kind == _PTX else (0, 0)
            entries.append((kind, capability, flags & _SUFFIXES, *version))
            at = following
            steps = _count(section, steps)
        yield entries


def _count(section: Section, steps: int) -> int:
    if steps >= MAX_STEPS:
        raise ElfError(section.name, f"more than {MAX_STEPS} entries are not credible")
    return steps + 1
