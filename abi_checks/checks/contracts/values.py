"""What an expression can be known to be, without running it.

Plain Python constants, tuples, lists, sets and dictionaries stand for themselves. Everything else is one of the
types below; :class:`Unknown` is the answer whenever the source does not settle it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from abi_checks.checks.contracts.source import Place, SourceModule

Value = Any
"""A constant, a container of values, or one of the types of this module."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the source and the stated facts leave open."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class External:
    """A name outside the sources that are read, such as ``torch.cuda.is_available``."""

    name: str


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """A module whose source is read."""

    name: str


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class whose source is read."""

    module: SourceModule
    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class Instance:
    """An object; its attributes live in the interpreter's state under ``number``."""

    number: int
    cls: ClassRef | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function or lambda, bound to ``receiver`` where it is a method; ``scope`` is the enclosing frame's number."""

    module: SourceModule
    node: ast.FunctionDef | ast.Lambda
    receiver: Value = None
    owner: ClassRef | None = None
    scope: int = 0


@dataclass(frozen=True, slots=True)
class Partial:
    """``functools.partial``."""

    target: Value
    positional: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enumeration whose source is read."""

    cls: ClassRef
    name: str


class Raised(Exception):
    """The source raises here, whatever the open questions turn out to be."""

    def __init__(self, kind: str, text: str, place: Place, *, deliberate: bool = False) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind
        self.text = text
        self.deliberate = deliberate
        """Raised by a statement for the purpose, not by an operation that fails."""
        self.place = place


OPEN = "it is open whether "
"""How the reason of an unknown begins that rests on an open condition."""


def unknown(otherwise: str, *values: Value) -> Unknown:
    """What follows from these values: unknown for the open condition that one of them rests on, or else as said."""
    for value in values:
        if isinstance(value, Unknown) and value.reason.startswith(OPEN):
            return value
    return Unknown(otherwise)


CONTAINERS = (tuple, list, set, frozenset, dict)


def is_concrete(value: Value) -> bool:
    """Whether a value is a constant, or a container with only constants in it."""
    if isinstance(value, dict):
        return all(is_concrete(k) and is_concrete(v) for k, v in value.items())
    if isinstance(value, CONTAINERS):
        return all(is_concrete(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool | bytes)


def truth(value: Value) -> bool | None:
    """Whether a value is true; None where that is open."""
    if isinstance(value, Unknown | External | Instance | Partial):
        # An object may define __bool__ or __len__, and an external call may return anything.
        return True if isinstance(value, Partial) else None
    if isinstance(value, Function | ClassRef | ModuleRef | EnumMember):
        return True
    return bool(value)


def same(left: Value, right: Value) -> bool | None:
    """Whether two values are equal; None where that is open."""
    if isinstance(left, EnumMember) and isinstance(right, EnumMember):
        return left == right
    if is_concrete(left) and is_concrete(right):
        return bool(left == right)
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    constant = (str, int, float, bool, bytes, type(None))
    if isinstance(left, CONTAINERS) and isinstance(right, constant):
        return False
    if isinstance(right, CONTAINERS) and isinstance(left, constant):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        if len(left) != len(right):
            return False
        parts = [same(a, b) for a, b in zip(left, right, strict=True)]
        return False if False in parts else None if None in parts else True
    return True if left is right else None


def contains(container: Value, item: Value) -> bool | None:
    """``item in container``; None where that is open."""
    if isinstance(container, str) and isinstance(item, str):
        return item in container
    if not isinstance(container, CONTAINERS):
        return None
    answers = [same(entry, item) for entry in container]
    return True if True in answers else None if None in answers else False


@dataclass(frozen=True, slots=True)
class Exit:
    """One way out of a function: ``kind`` is ``return``, ``raise`` or ``end``.

    ``certain`` tells that no open condition lies around it, ``guard`` is the innermost condition that led there.
    """

    kind: str
    value: Value
    place: Place
    certain: bool
    state: dict[tuple[int, str], Value]
    guard: Place | None = None


@dataclass(frozen=True, slots=True)
class Construction:
    """An object that was made, and the ways out of its constructor."""

    cls: ClassRef
    number: int
    exits: tuple[Exit, ...]
