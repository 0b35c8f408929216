"""The room that glibc keeps for thread-local variables at a fixed distance from the thread pointer (static TLS).

Objects that are there at a program's start get what they need. For those opened later a fixed surplus is left, and an
object whose code is of the model "initial exec" (libgomp, jemalloc …) must fit into what of it is free, or dlopen says
"cannot allocate memory in static TLS block". Source: glibc 2.36, elf/dl-tls.c (_dl_determine_tlsoffset,
_dl_tls_static_surplus_init) and elf/dl-reloc.c (_dl_try_allocate_static_tls), checked against the real loader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from abi_checks.elf_facts import ElfFacts
from abi_checks.elf_format import EM_X86_64

_OPTIONAL = 512
"""The default of the tunable glibc.rtld.optional_static_tls, a part of the surplus."""
SURPLUS = 1152 + _OPTIONAL
"""Bytes, with the tunable glibc.rtld.nns at its default of 4."""
_THREAD_CONTROL_BLOCK = {EM_X86_64: 64}
"""Its alignment, to which the whole is rounded up; 16 elsewhere."""


@dataclass(slots=True)
class StaticTls:
    """Static TLS of a process: bytes used, the whole, the largest alignment that can be served, and what was free for
    all that is opened after the start."""

    used: int
    size: int
    alignment: int
    surplus: int

    @classmethod
    def of_start(cls, objects: Iterable[ElfFacts], machine: int) -> StaticTls:
        """That of a process which starts with ``objects``, in the order of the link map."""
        used, alignment = 0, _THREAD_CONTROL_BLOCK.get(machine, 16)
        for facts in objects:
            size, own, first = facts.tls
            if size:
                alignment = max(alignment, own)
                used = _round_up(used + size - first, own) + first
        whole = _round_up(used + SURPLUS, alignment)
        return cls(used, whole, alignment, whole - used)

    def copy(self) -> StaticTls:
        """The same again, for a process that goes on differently."""
        return replace(self)

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return self.size - self.used

    def place(self, facts: ElfFacts) -> bool:
        """Give an object that is opened its block, if it must lie here; False where it does not fit."""
        size, alignment, first = facts.tls
        if not facts.initial_exec:
            return True
        if alignment > self.alignment or size + first > self.free:
            return False
        self.used += self.free - (self.free - size - first) // alignment * alignment - first
        return True


def enough(lacking: int) -> int:
    """A value of glibc.rtld.optional_static_tls that leaves so many bytes more, however the whole is rounded."""
    return _OPTIONAL + lacking + max(_THREAD_CONTROL_BLOCK.values())


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
