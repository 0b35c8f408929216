"""Classes across modules: bases, method resolution order, and where an attribute is defined."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from abi_checks.checks.contracts.source import SourceModule, SourceTree
from abi_checks.checks.contracts.values import ClassRef


@dataclass(frozen=True, slots=True)
class Lineage:
    """The method resolution order of a class, as far as its source is there.

    ``outside`` names the bases whose source is not read (``torch.nn.Module``); ``open`` gives the reasons for which the
    order is incomplete (a base that is computed, or whose module does not parse).
    """

    order: tuple[ClassRef, ...]
    outside: tuple[str, ...]
    open: tuple[str, ...]


class ClassIndex:
    """Resolves classes of a tree; answers are kept."""

    def __init__(self, tree: SourceTree, packages: tuple[str, ...]) -> None:
        self.tree = tree
        self.packages = packages
        self._lineages: dict[int, Lineage] = {}

    def find(self, module: SourceModule, name: str) -> ClassRef | str:
        """The class that a name or dotted name means in a module, or its address where the source is not read."""
        head, _, rest = name.partition(".")
        origin, member = self.tree.resolve(module, head)
        while rest and not member:
            head, _, rest = rest.partition(".")
            if origin.partition(".")[0] not in self.packages:
                return f"{origin}.{head}" + (f".{rest}" if rest else "")
            origin, member = self.tree.resolve_member(origin, head)
        owner = self.tree.module(origin) if origin.partition(".")[0] in self.packages else None
        if owner and member in owner.classes and not rest:
            return ClassRef(owner, owner.classes[member])
        if owner and member in owner.bindings:
            # An alias at module level: Name = OtherName
            last = owner.bindings[member][-1]
            if isinstance(last, ast.Assign) and isinstance(last.value, ast.Name | ast.Attribute):
                target = ast.unparse(last.value)
                if target != member:
                    return self.find(owner, target)
        return ".".join(part for part in (origin, member, rest) if part)

    def lineage(self, cls: ClassRef) -> Lineage:
        """The C3 linearization of a class; where the bases admit none, depth first."""
        key = id(cls.node)
        if key in self._lineages:
            return self._lineages[key]
        self._lineages[key] = Lineage((cls,), (), ("inherits from itself",))
        outside: list[str] = []
        reasons: list[str] = []
        chains: list[list[ClassRef]] = []
        direct: list[ClassRef] = []
        for base in cls.node.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            if not isinstance(expression, ast.Name | ast.Attribute):
                reasons.append(f"base {ast.unparse(base)} of {cls.node.name} is computed")
                continue
            found = self.find(cls.module, ast.unparse(expression))
            if isinstance(found, str):
                outside.append(found)
                if found.partition(".")[0] in self.packages:
                    reasons.append(f"base {found} of {cls.node.name} is not found in the source")
                continue
            line = self.lineage(found)
            outside.extend(line.outside)
            reasons.extend(line.open)
            chains.append(list(line.order))
            direct.append(found)
        order = [cls, *_merge([*chains, direct])]
        result = Lineage(tuple(order), tuple(dict.fromkeys(outside)), tuple(dict.fromkeys(reasons)))
        self._lineages[key] = result
        return result


def _merge(chains: list[list[ClassRef]]) -> list[ClassRef]:
    """C3: take the first head that is in no other chain's tail."""
    chains = [list(chain) for chain in chains if chain]
    order: list[ClassRef] = []
    while chains:
        head = next(
            (c[0] for c in chains if not any(_has(c[0], other[1:]) for other in chains)),
            chains[0][0],
        )
        order.append(head)
        chains = [rest for chain in chains if (rest := [c for c in chain if c.node is not head.node])]
    return order


def _has(cls: ClassRef, chain: list[ClassRef]) -> bool:
    return any(other.node is cls.node for other in chain)


@lru_cache(maxsize=8192)
def members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    """Names bound in a class body (also below ``if`` and ``try``), each with the last statement that binds it."""
    found: dict[str, ast.stmt] = {}
    stack: list[ast.stmt] = list(node.body)
    while stack:
        statement = stack.pop(0)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            found.update({t.id: statement for t in statement.targets if isinstance(t, ast.Name)})
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            found[statement.target.id] = statement
        elif isinstance(statement, ast.If | ast.Try):
            stack = [*statement.body, *statement.orelse, *getattr(statement, "finalbody", []), *stack]
    return found
