"""From the torch symbols that objects need to the releases that satisfy them all, or to the objects in conflict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from abi_checks.torch_symbols.table import SymbolTable

NO_RELEASE = "no release"


@dataclass(frozen=True, slots=True)
class Need:
    """What one object needs of torch: the releases that have it all, and the symbols that rule releases out."""

    object: str
    symbols: int
    """How many names of torch the object needs."""
    releases: tuple[str, ...]
    """Oldest first; empty where no release of the table has them all."""
    deciding: tuple[bytes, ...]
    """A small set of its symbols that alone leaves the same releases; empty where every release has them all."""
    nowhere: tuple[bytes, ...]
    """Symbols that no release of the table exports."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A smallest set of objects that no release satisfies together."""

    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What the objects of a target need of torch, and the releases for all of them, or why there is none."""

    needs: tuple[Need, ...]
    releases: tuple[str, ...]
    conflict: Conflict | None


def compatibility(table: SymbolTable, objects: Mapping[str, Collection[bytes]]) -> Compatibility:
    """Judge ``objects`` (path → names it needs that none but torch can provide).

    Objects that need nothing the table covers are left out. An object that no release satisfies is a conflict of one.
    """
    everything = (1 << len(table.releases)) - 1
    known = table.masks({name for names in objects.values() for name in names})
    needs: list[Need] = []
    masks: list[int] = []
    for path, names in sorted(objects.items()):
        wanted = sorted(name for name in names if name in known)
        if not wanted:
            continue
        mask = everything
        for name in wanted:
            mask &= known[name]
        deciding = _cover(everything & ~mask, {name: everything & ~known[name] for name in wanted})
        nowhere = tuple(name for name in wanted if not known[name])
        needs.append(Need(path, len(wanted), table.select(mask), deciding, nowhere))
        masks.append(mask)
    common = everything
    for mask in masks:
        common &= mask
    conflict = None if common else Conflict(tuple(needs[number] for number in _smallest_conflict(masks)))
    return Compatibility(tuple(needs), table.select(common), conflict)


def _cover(excluded: int, excludes: Mapping[bytes, int]) -> tuple[bytes, ...]:
    """Few names that together exclude all of ``excluded``: the one that excludes most first (greedy set cover)."""
    chosen: list[bytes] = []
    while excluded:
        best = max(excludes, key=lambda name: ((excludes[name] & excluded).bit_count(), name))
        chosen.append(best)
        excluded &= ~excludes[best]
    return tuple(chosen)


def _smallest_conflict(masks: Sequence[int]) -> tuple[int, ...]:
    """Places of the fewest masks that have no bit in common; ``masks`` as a whole must have none."""
    first_with: dict[int, int] = {}
    for number, mask in enumerate(masks):
        first_with.setdefault(mask, number)
    # A mask that contains another one adds nothing to a conflict.
    narrow = [mask for mask in first_with if not any(other != mask and other & mask == other for other in first_with)]
    for size in range(1, len(narrow) + 1):
        for group in combinations(narrow, size):
            common = -1
            for mask in group:
                common &= mask
            if not common:
                return tuple(sorted(first_with[mask] for mask in group))
    raise ValueError("the masks have a bit in common")


def release_ranges(table: SymbolTable, releases: Iterable[str]) -> str:
    """Releases for people: ``2.4.0 to 2.6.0, 2.9.0 to 2.9.1``; ``no release`` for none."""
    wanted = set(releases)
    runs: list[list[str]] = []
    previous = -2
    for number, version in enumerate(table.versions):
        if version in wanted:
            if number == previous + 1:
                runs[-1].append(version)
            else:
                runs.append([version])
            previous = number
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or NO_RELEASE
