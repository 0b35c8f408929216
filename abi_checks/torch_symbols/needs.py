"""What objects need of torch."""

from __future__ import annotations

from collections.abc import Sequence

from abi_checks.elf_facts import ElfFacts
from abi_checks.torch_symbols.table import covered


def names_of_torch(objects: Sequence[ElfFacts]) -> dict[str, tuple[bytes, ...]]:
    """Path → the names of torch that an object needs, without those that another of the objects defines; objects that
    need none are left out. ``objects`` are those of a target that torch itself does not own."""
    asked = covered({name for facts in objects for name, _ in facts.undefined})
    elsewhere = {name for facts in objects for name in asked & facts.defined} if asked else set()
    wanted = asked - elsewhere
    needs = {facts.path: tuple(name for name, _ in facts.undefined if name in wanted) for facts in objects}
    return {path: names for path, names in needs.items() if names}
