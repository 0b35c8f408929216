"""The loader's answer on one object, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

ALREADY_LOADED = "already loaded"


class Verdict(StrEnum):
    """What the loader would say of an object."""

    LOADS = "loads"
    FAILS = "fails"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Found:
    """The file that satisfies a NEEDED entry, and by which rule it was found."""

    path: str
    found_via: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A NEEDED entry that nothing satisfies; ``considered`` lists the places looked at, in order, and why each was
    passed over."""

    library: str
    required_by: str
    considered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A symbol, or a symbol version, that no object in scope provides."""

    symbol: str
    """Mangled; "" where a whole version is missing from the library it is asked of."""
    version: str
    required_by: str
    defined_by: str = ""
    """An object that defines the symbol and is not in scope, if the target or the process has one."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """An object whose thread-local variables find no room in static TLS; sizes in bytes."""

    required_by: str
    """The object: the one that is judged, or one that it loads."""
    needed: int
    free: int
    total: int
    """What was free when the program had started, before anything was opened."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The verdict on one object, with what it rests on."""

    path: str
    verdict: Verdict
    found: Mapping[str, Found]
    """NEEDED entry of this object → what satisfies it."""
    missing: tuple[Missing, ...] = ()
    """Of this object and of what it loads."""
    unresolved: tuple[Unresolved, ...] = ()
    reason: str = ""
    """Why the verdict is ``unknown``, or why the object can't be opened at all."""
    closure: frozenset[str] = frozenset()
    """Paths of everything in its scope that it loads itself or finds loaded by name."""
    crowded: Crowded | None = None
    """The first object, of this one and what it loads, without room for its thread-local variables."""
    foreign: bool = False
    """It can't be opened because it is built for another machine."""
