"""The Python source of installed packages, parsed and never executed.

A :class:`SourceTree` knows one site-packages folder (or a checkout with the same packages below it). Modules are
read as bytes, so that a byte order mark or an encoding line is honoured, and parsed only when something asks for them.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from abi_checks.errors import SourceError


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a source file; ``path`` is relative to site-packages."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be judged, and why."""

    path: str
    reason: str


@dataclass(eq=False)
class SourceModule:
    """One parsed module; ``path`` is relative to site-packages."""

    name: str
    path: str
    is_package: bool
    tree: ast.Module

    def place(self, node: ast.AST) -> Place:
        """Where a node of this module stands."""
        return Place(self.path, getattr(node, "lineno", 1))

    @cached_property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """For each name bound at module level, the top-level statements that bind it, in order."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in set(_bound_names(statement)):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def set_at_run_time(self) -> frozenset[str]:
        """Names of module and class variables that functions of the module rebind or change in place.

        A name that is only ever filled in once, by functions that first ask whether it is None and then return it, is
        not among them: whoever reads it through such a function gets what the first call computed.
        """
        rebound: set[str] = set()
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    rebound.update(name for name in node.names if not _fills_in_once(function, name))
                elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                    rebound.update(_last_name(node.value))
                elif (
                    isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS
                ):
                    rebound.update(_last_name(node.func.value))
        return frozenset(rebound)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes defined at module level, also below ``if`` and ``try``; the last definition of a name wins."""
        return {node.name: node for node in _module_level(self.tree.body) if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """For each name imported at module level, the absolute module and the member ("" for the module itself)."""
        found: dict[str, tuple[str, str]] = {}
        for node in _module_level(self.tree.body):
            found.update(imported_names(node, self))
        return found

    @cached_property
    def star_imports(self) -> tuple[str, ...]:
        """Modules imported with ``*`` at module level."""
        return tuple(
            absolute_module(node, self)
            for node in _module_level(self.tree.body)
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        )


def absolute_module(node: ast.ImportFrom, module: SourceModule) -> str:
    """The module that a ``from … import`` names, with relative dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    if not module.is_package:
        parts.pop()
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def imported_names(node: ast.stmt, module: SourceModule) -> dict[str, tuple[str, str]]:
    """The names that an import statement binds, each with its absolute module and member."""
    names: dict[str, tuple[str, str]] = {}
    if isinstance(node, ast.ImportFrom):
        origin = absolute_module(node, module)
        names.update({a.asname or a.name: (origin, a.name) for a in node.names if a.name != "*"})
    elif isinstance(node, ast.Import):
        for alias in node.names:
            names[alias.asname or alias.name.partition(".")[0]] = (
                (alias.name if alias.asname else alias.name.partition(".")[0]),
                "",
            )
    return names


_MUTATORS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "add",
        "discard",
        "sort",
    ]
)


def _last_name(node: ast.expr) -> tuple[str, ...]:
    return (node.id,) if isinstance(node, ast.Name) else (node.attr,) if isinstance(node, ast.Attribute) else ()


def _fills_in_once(function: ast.FunctionDef, name: str) -> bool:
    nodes = list(ast.walk(function))
    returned = any(isinstance(n, ast.Return) and isinstance(n.value, ast.Name) and n.value.id == name for n in nodes)
    return returned and any(isinstance(n, ast.If) and ast.unparse(n.test) == f"{name} is None" for n in nodes)


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _module_level(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _module_level(handler.body)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield from _bound_names(child)
        elif isinstance(child, ast.ExceptHandler):
            for inner in child.body:
                yield from _bound_names(inner)
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and statement.value is not None:
        yield from (n.id for n in [statement.target] if isinstance(n, ast.Name))


@dataclass(eq=False)
class SourceTree:
    """The packages below one folder; files that cannot be read or parsed collect in ``unreadable``."""

    root: Path
    unreadable: list[Unreadable] = field(default_factory=list)
    _bytes: dict[Path, bytes] = field(default_factory=dict)
    _listings: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    _modules: dict[str, SourceModule | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder; name a site-packages folder or a checkout's python folder")

    @cached_property
    def is_environment(self) -> bool:
        """Whether the folder is a site-packages with torch in it: only then does a missing package mean anything."""
        return (self.root / "torch").is_dir()

    def has_package(self, name: str) -> bool:
        """Whether an import of this top-level package or submodule would find a file or folder."""
        base = self.root.joinpath(*name.split("."))
        return (
            base.is_dir()
            or base.with_suffix(".py").is_file()
            or (base.parent.is_dir() and next(base.parent.glob(f"{base.name}.*.so"), None) is not None)
        )

    def has_entry_points(self, group: str) -> bool:
        """Whether an installed distribution declares entry points of this group."""
        declared = (self.read(path) for path in self.root.glob("*.dist-info/entry_points.txt"))
        return any(f"[{group}]".encode() in text for text in declared)

    def read(self, path: Path) -> bytes:
        """The bytes of a file below the root, read once; unreadable files count as empty and are remembered."""
        if path not in self._bytes:
            try:
                self._bytes[path] = path.read_bytes()
            except OSError as error:
                self._bytes[path] = b""
                self.unreadable.append(Unreadable(self.relative(path), f"cannot be read: {error.strerror}"))
        return self._bytes[path]

    def relative(self, path: Path) -> str:
        """The path below the root, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def files(self, package: str, *words: bytes) -> Iterator[Path]:
        """Source files of a package, sorted, whose bytes hold at least one of the words (all files without words)."""
        if package not in self._listings:
            base = self.root.joinpath(*package.split("."))
            found = [Path(folder, name) for folder, _, names in os.walk(base) for name in names if name.endswith(".py")]
            self._listings[package] = tuple(sorted(found, key=str))
        for path in self._listings[package]:
            if not words or any(word in self.read(path) for word in words):
                yield path

    def module_of(self, path: Path) -> SourceModule | None:
        """The parsed module of a file, or None where it does not parse."""
        parts = list(path.relative_to(self.root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        return self.module(".".join(parts))

    def module(self, name: str) -> SourceModule | None:
        """The parsed module of this dotted name; None where there is no such file or it does not parse."""
        if name in self._modules:
            return self._modules[name]
        base = self.root.joinpath(*name.split("."))
        is_package = (base / "__init__.py").is_file()
        path = base / "__init__.py" if is_package else base.parent / f"{base.name}.py"
        module = None
        if path.is_file():
            try:
                with warnings.catch_warnings():
                    # A doubtful escape in somebody else's source is no news for who reads a report on it.
                    warnings.simplefilter("ignore")
                    tree = ast.parse(self.read(path))
                module = SourceModule(name, self.relative(path), is_package, tree)
            except (SyntaxError, ValueError, RecursionError) as error:
                line = getattr(error, "lineno", None)
                where = f" in line {line}" if line else ""
                self.unreadable.append(Unreadable(self.relative(path), f"does not parse{where}: {error}"))
        self._modules[name] = module
        return module

    def resolve(
        self, module: SourceModule, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> tuple[str, str]:
        """Follow imports and star imports from a name used in a module to ``(module, name)`` where it is defined.

        Where the trail leaves the readable sources, the last address is returned: ``("torch.nn", "Module")``.
        """
        key = (module.name, name)
        if key in seen:
            return key
        seen |= {key}
        if name in module.imports and name not in module.classes:
            origin, member = module.imports[name]
            if not member:
                return origin, ""
            return self.resolve_member(origin, member, seen)
        if name not in module.bindings:
            for origin in module.star_imports:
                other = self.module(origin)
                if other and (name in other.bindings or other.star_imports):
                    found = self.resolve(other, name, seen)
                    if (target := self.module(found[0])) and found[1] in target.bindings:
                        return found
        return key

    def resolve_member(
        self, origin: str, member: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> tuple[str, str]:
        """The definition behind ``from origin import member``."""
        other = self.module(origin)
        if other is None:
            return origin, member
        if member in other.bindings or other.star_imports:
            return self.resolve(other, member, seen)
        if self.module(f"{origin}.{member}"):
            return f"{origin}.{member}", ""
        return origin, member
