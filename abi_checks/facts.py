"""One file of a source → all that is known of it: what a scan gathers, and what its cache remembers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError, ElfFacts
from abi_checks.fatbin import FatBinaries, read_device_code
from abi_checks.sources.interface import SourceObject, Unreadable


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """An object's ELF facts and device code, with the names it lies under; ``device_problem`` says why its device code
    can't be read, where that is so."""

    elf: ElfFacts
    device_code: tuple[FatBinaries, ...]
    device_problem: str
    aliases: tuple[str, ...]
    """Absolute."""
    identity: tuple[int, int] | None
    stamp: tuple[int, int, int, int] | None
    """As in :class:`abi_checks.sources.interface.SourceObject`."""


Gathered = ObjectFacts | Unreadable | None
"""None is a file that is no ELF file and doesn't claim to be one."""
Reader = Callable[[SourceObject | Unreadable], Gathered]


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """Reads the facts of each object of a source with this root; picklable, so that processes can share the work."""

    root: str

    def __call__(self, item: SourceObject | Unreadable) -> Gathered:
        """The facts of one object. A damaged one is an Unreadable with the field at fault."""
        if isinstance(item, Unreadable):
            return item
        try:
            elf = read_elf(item.data, os.path.join(self.root, item.path))
        except ElfError as error:
            return None if error.not_elf and _claims_little(item.path) else Unreadable(item.path, str(error))
        aliases = tuple(os.path.join(self.root, alias) for alias in item.aliases)
        device_code: tuple[FatBinaries, ...] = ()
        problem = ""
        if elf.device_sections:
            try:
                device_code = read_device_code(item.data, elf.device_sections)
            except ElfError as error:
                problem = str(error)
        return ObjectFacts(elf, device_code, problem, aliases, item.identity, item.stamp)


def _claims_little(path: str) -> bool:
    """Whether a file that isn't ELF need not have been: names like ``x.so.py`` or ``x.so.txt`` claim nothing."""
    return path.rpartition(".so")[2].strip(".0123456789") != ""
