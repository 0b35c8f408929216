"""The facts of one ELF file that decide whether it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

Reference = tuple[bytes, bytes | None]
"""A symbol asked for: its (mangled) name, and the version asked for, if any."""


class ElfError(Exception):
    """The file isn't an ELF file that can be judged; ``field`` names what is wrong in it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why

    @property
    def not_elf(self) -> bool:
        """Whether the file is something else altogether, rather than damaged."""
        return self.field == "magic"


@dataclass(frozen=True, slots=True)
class Section:
    """A section that may hold device code: name, file offset and size in bytes."""

    name: str
    offset: int
    size: int


class DynamicSymbols(Protocol):
    """The dynamic symbols of one object; by far most of what is known of it, so the scan cache has a class of this kind
    that reads them when they are first asked for."""

    @property
    def undefined(self) -> tuple[Reference, ...]:
        """Strong references only: an unresolved weak one is not an error (gABI, "Symbol Table")."""

    @property
    def defined(self) -> frozenset[bytes]:
        """The names that another object could bind to."""

    @property
    def versions(self) -> Mapping[bytes, tuple[tuple[bytes, bool], ...]]:
        """For objects with version definitions: name → (version, whether an unversioned reference passes it over) of
        each definition; absent names are unversioned."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """A :class:`DynamicSymbols` in memory."""

    undefined: tuple[Reference, ...] = ()
    defined: frozenset[bytes] = frozenset()
    versions: Mapping[bytes, tuple[tuple[bytes, bool], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What one object says of itself. ``path`` is where it lies (absolute, or absolute in the environment it would
    become)."""

    path: str
    elf_class: int
    """32 or 64."""
    little_endian: bool
    machine: int
    """``e_machine``; 62 is x86-64, 183 is AArch64."""
    elf_type: int
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    flags_1: int
    """``DT_FLAGS_1``."""
    versions_defined: frozenset[str] = field(repr=False)
    versions_needed: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)
    """Library, as NEEDED names it, and the symbol versions that must be defined by it (weak needs left out)."""
    has_version_definitions: bool
    device_sections: tuple[Section, ...]
    has_interpreter: bool
    """Whether there is a PT_INTERP, as programs have."""
    tls: tuple[int, int, int]
    """Of the block of thread-local variables (PT_TLS): its size, its alignment, and its address modulo that; (0, 1, 0)
    where there is none."""
    initial_exec: bool
    """Whether code reaches that block at a fixed distance from the thread pointer ("initial exec"), so that it must lie
    in static TLS."""
    symbols: DynamicSymbols = field(repr=False)
    """Last, so that facts that differ in anything else are told apart without reading symbols."""

    @property
    def undefined(self) -> tuple[Reference, ...]:
        """See :class:`DynamicSymbols`."""
        return self.symbols.undefined

    @property
    def defined(self) -> frozenset[bytes]:
        """See :class:`DynamicSymbols`."""
        return self.symbols.defined

    @property
    def defined_versions(self) -> Mapping[bytes, tuple[tuple[bytes, bool], ...]]:
        """See :class:`DynamicSymbols`."""
        return self.symbols.versions
