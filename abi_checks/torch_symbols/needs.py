"""What objects need of torch."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from abi_checks.elf_facts import ElfFacts, Reference
from abi_checks.torch_symbols.table import covered


def names_of_torch(objects: Sequence[ElfFacts]) -> dict[str, tuple[bytes, ...]]:
    """Path → the names of torch that an object needs, without those that another of the objects defines; objects that
    need none are left out. ``objects`` are those of a target that torch itself does not own."""
    references = set[Reference]().union(*(facts.undefined for facts in objects))
    asked = covered({name for name, _ in references})
    wanted = asked.difference(*(asked & facts.defined for facts in objects)) if asked else asked
    return {
        facts.path: tuple(name for name, _ in facts.undefined if name in wanted)
        for facts in objects
        if not wanted.isdisjoint(map(itemgetter(0), facts.undefined))
    }
