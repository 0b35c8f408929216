"""Which references and symbol versions of a mapped object find their definition.

Follows glibc 2.36, elf/dl-lookup.c and dl-version.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse

from abi_checks.elf_facts import ElfFacts, Reference
from abi_checks.link_map import Node, closure
from abi_checks.resolution import Unresolved


class _Definitions(dict[Reference, tuple[int, ...]]):
    """Reference → the objects (by id of their facts) whose definition may satisfy it; found when it is first asked
    for."""

    def __init__(self, providers: Mapping[bytes, Sequence[ElfFacts]]) -> None:
        super().__init__()
        self._providers = providers

    def __missing__(self, reference: Reference) -> tuple[int, ...]:
        providers = self._providers.get(reference[0], ())
        self[reference] = answer = tuple(id(provider) for provider in providers if _matches(provider, reference))
        return answer


class SymbolLookup:
    """Symbols of all objects that take part, by who defines them.

    ``everywhere``: the nodes of the global scope; complete before the first question.
    """

    def __init__(self, everywhere: Mapping[int, Node]) -> None:
        self._everywhere = everywhere
        self._providers: dict[bytes, list[ElfFacts]] = {}
        self._definitions = _Definitions(self._providers)
        self._global: set[Reference] = set()
        """The references that the global scope, which is part of every scope, satisfies."""
        self._pending: dict[int, list[Reference]] = {}

    def index(self, *groups: Iterable[Node]) -> None:
        """Symbol → the nodes that define it, for the symbols that anyone asks for."""
        unique = {id(node.facts): node.facts for group in groups for node in group if node.facts}
        # An environment has 110,000 references and 9,000 different ones.
        references = set[Reference]().union(*(facts.undefined for facts in unique.values()))
        wanted = {name for name, _ in references}
        for facts in unique.values():
            for name in wanted & facts.defined:
                self._providers.setdefault(name, []).append(facts)
        everywhere = {id(node.facts) for node in self._everywhere.values() if node.facts}
        self._global = {item for item in references if not everywhere.isdisjoint(self._definitions[item])}

    def gaps(self, node: Node, scope: set[int], assumed: Callable[[str], bool]) -> Iterator[Unresolved]:
        """The references of an object that nothing in ``scope`` (ids of facts) defines, but for ``assumed`` names."""
        if node.facts is None:
            return
        for reference in self._beyond_globals(node.facts):
            if scope.isdisjoint(self._definitions[reference]):
                text = reference[0].decode("utf-8", "backslashreplace")
                if not assumed(text):
                    elsewhere = next((provider.path for provider in self._providers.get(reference[0], ())), "")
                    yield Unresolved(text, (reference[1] or b"").decode(), node.path, elsewhere)

    def _beyond_globals(self, facts: ElfFacts) -> list[Reference]:
        """The references that the global scope does not satisfy."""
        pending = self._pending.get(id(facts))
        if pending is None:
            pending = self._pending[id(facts)] = list(filterfalse(self._global.__contains__, facts.undefined))
        return pending


def version_gaps(node: Node) -> Iterator[Unresolved]:
    """elf/dl-version.c: a version must be defined by the library it is asked of; one without definitions passes."""
    if node.facts is None:
        return
    for library, versions in node.facts.versions_needed:
        provider = next((edge.facts for edge in node.edges if _known_as(edge, library, node)), None)
        if provider is None:
            provider = next((edge.facts for edge in closure(node) if _known_as(edge, library, node)), None)
        if provider and provider.has_version_definitions:
            for version in versions:
                if version not in provider.versions_defined:
                    yield Unresolved("", version, node.path)


def _matches(facts: ElfFacts, reference: Reference) -> bool:
    """elf/dl-lookup.c, check_match: whether a definition may satisfy a reference, their versions considered."""
    name, version = reference
    definitions = facts.defined_versions.get(name)
    if not definitions:
        return True  # unversioned: an object without versions, or the base version
    if version is None:
        return any(not hidden for _, hidden in definitions)
    return any(defined == version for defined, _ in definitions)


def _known_as(edge: Node, library: str, node: Node) -> bool:
    if edge.facts is None:
        return False
    return edge.facts.soname == library or (library in node.found and node.found[library].path == edge.facts.path)
