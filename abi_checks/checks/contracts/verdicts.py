"""The verdict on an option of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from abi_checks.checks.contracts.source import Place
from abi_checks.checks.contracts.values import Value


class Outcome(StrEnum):
    """What becomes of an option."""

    EFFECTIVE = "effective"
    CHANGED = "changed"
    INERT = "inert"
    REFUSED = "refused"
    CRASHES = "crashes"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OptionVerdict:
    """The verdict on one option; ``requested`` is None for a value that nobody asked for.

    ``places`` are the lines that decide, ``conditions`` what else must hold at run time for an effect.
    """

    option: str
    requested: Value
    outcome: Outcome
    reason: str
    places: tuple[Place, ...] = ()
    conditions: tuple[str, ...] = ()
