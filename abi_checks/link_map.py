"""What is mapped into a process: objects, the names and files under which they are known, and what each led to."""

from __future__ import annotations

from abi_checks.elf_facts import ElfFacts
from abi_checks.resolution import Found, Missing


class Node:
    """An object mapped into a process: its facts, whom it was loaded by, and what its NEEDED entries led to."""

    __slots__ = ("assumed", "edges", "facts", "found", "missing", "parent")

    def __init__(self, facts: ElfFacts | None, parent: Node | None, assumed: str = "") -> None:
        self.facts = facts
        self.parent = parent
        self.assumed = assumed
        """The name of a library, the driver's or the interpreter's, that is assumed to be there."""
        self.edges: list[Node] = []
        self.found: dict[str, Found] = {}
        self.missing: list[Missing] = []

    @property
    def path(self) -> str:
        return self.facts.path if self.facts else self.assumed

    def chain(self) -> list[ElfFacts]:
        """The facts of the node and of those that led to its being loaded."""
        found: list[ElfFacts] = []
        node: Node | None = self
        while node is not None:
            if node.facts:
                found.append(node.facts)
            node = node.parent
        return found


class LinkMap:
    """The link map of a process: nodes by the names and by the files under which they are known."""

    def __init__(self, base: LinkMap | None = None) -> None:
        self.base = base
        self.by_name: dict[str, Node] = {}
        self.by_file: dict[int, Node] = {}
        self.nodes: list[Node] = []

    def named(self, name: str) -> Node | None:
        return self.by_name.get(name) or (self.base.by_name.get(name) if self.base else None)

    def filed(self, key: int) -> Node | None:
        return self.by_file.get(key) or (self.base.by_file.get(key) if self.base else None)

    def filed_new(self, node: Node) -> bool:
        """Whether a node isn't part of the process yet."""
        return node.facts is None or self.filed(id(node.facts)) is None

    def add(self, node: Node, name: str = "") -> None:
        self.nodes.append(node)
        if node.facts:
            self.by_file[id(node.facts)] = node
            if node.facts.soname:
                self.by_name.setdefault(node.facts.soname, node)
        if name:
            self.by_name.setdefault(name, node)


def closure(root: Node) -> list[Node]:
    """``root`` and everything reachable through NEEDED entries, breadth first: the object's local scope."""
    seen = {id(root)}
    order = [root]
    for node in order:
        for edge in node.edges:
            if id(edge) not in seen:
                seen.add(id(edge))
                order.append(edge)
    return order
