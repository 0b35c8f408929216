"""What objects need of torch."""

from __future__ import annotations

from collections.abc import Sequence

from abi_checks.elf_facts import ElfFacts
from abi_checks.torch_symbols.table import covers


def names_of_torch(objects: Sequence[ElfFacts]) -> dict[str, tuple[bytes, ...]]:
    """Path → the names of torch that an object needs, without those that another of the objects defines; objects that
    need none are left out. ``objects`` are those of a target that torch itself does not own."""
    wanted = {facts.path: [name for name, _ in facts.undefined if covers(name)] for facts in objects}
    asked = {name for names in wanted.values() for name in names}
    elsewhere = {name for facts in objects for name in asked & facts.defined} if asked else set()
    mine = {path: tuple(name for name in names if name not in elsewhere) for path, names in wanted.items()}
    return {path: names for path, names in mine.items() if names}
