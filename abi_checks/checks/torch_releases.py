"""Which torch releases export all that an object needs of torch.

Looks for: torch's symbols (c10, at, torch, caffe2, and its C interfaces) that an object needs and that no other library
of the target defines, in the shipped table of what each torch release exports.
Decides: a release satisfies an object if its libraries export all of these names. An object that uses the stable C
interface alone (``aoti_torch_…``, ``torch_…``) is bound to no release, only to a first one. A warning is given when the
torch that is installed satisfies fewer objects than another release would, and, where the target has no torch, when an
object's distribution admits releases that its objects can't load with.
Can't see: releases that the table doesn't have; classes that changed their layout and kept their names; builds of torch
from other places, which may differ from the public one in CUDA code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.demangle import demangle
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution
from abi_checks.symbol_owners import Owner, owner_of
from abi_checks.torch_symbols import (
    Compatibility,
    Need,
    SymbolTable,
    compatibility,
    covers,
    release_ranges,
    shipped_table,
)

ID = "torch-release"
SHOWN = 12
FITS = "which torch releases export what an object needs"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding of information per object that needs torch, and warnings about the target as a whole."""
    wanted = scan.needed_of_torch
    if not wanted:
        return
    table = shipped_table()
    found = compatibility(table, wanted)
    torch = scan.installed("torch")
    stable = {
        path
        for path, names in wanted.items()
        if all(owner_of(name.decode(), "").owner is Owner.TORCH_STABLE for name in names if covers(name))
    }
    for need in found.needs:
        yield _of_object(scan, table, need, torch, need.object in stable)
    if torch:
        yield from _of_target(scan, table, found, torch)
    else:
        yield from _undeclared(scan, table, found)


def _of_object(scan: Scan, table: SymbolTable, need: Need, torch: Distribution | None, stable: bool) -> Finding:
    has = f", has {torch.version}" if torch else ""
    needs = f"needs torch {release_ranges(table, need.releases)}"
    if stable and need.releases:
        needs = f"bound to no torch release: uses its stable C interface alone, there since torch {need.releases[0]}"
    return Finding(
        check=ID,
        severity=Severity.INFO,
        object=scan.relative(need.object),
        message=needs + has,
        cause=FITS,
        remedy="keep torch within these releases, or install a build of this object for the torch that is wanted",
        evidence=tuple(_evidence(table, name) for name in need.deciding[:SHOWN]),
        distribution=scan.owner_label(need.object),
    )


def _evidence(table: SymbolTable, name: bytes) -> str:
    return f"{demangle(name.decode())}: torch {release_ranges(table, table.releases_exporting([name]))}"


def _of_target(scan: Scan, table: SymbolTable, found: Compatibility, torch: Distribution) -> Iterator[Finding]:
    """Whether another release than the installed one would satisfy more objects."""
    counts = Counter(version for need in found.needs for version in need.releases)
    if not counts:
        return
    installed = torch.version.partition("+")[0]
    total, most = len(found.needs), max(counts.values())
    best = release_ranges(table, [version for version in table.versions if counts[version] == most])
    if installed not in table.versions:
        known = f"{table.versions[0]} to {table.versions[-1]}"
        message = f"torch {torch.version} is not in the table ({known}); {best} satisfies {most} of {total} objects"
        yield _whole(
            Severity.INFO, message, "a torch release that the table does not have", "judge by the symbols found", ()
        )
        return
    have = counts[installed]
    message = f"torch {torch.version} satisfies {have} of the {total} objects that need torch"
    if have == most:
        yield _whole(Severity.INFO, message, FITS, "nothing to do", _conflict(scan, table, found))
        return
    lost = [need for need in found.needs if installed not in need.releases]
    evidence = tuple(
        f"{scan.relative(need.object)}: torch {release_ranges(table, need.releases)}" for need in lost[:SHOWN]
    )
    yield _whole(
        Severity.WARNING,
        f"{message}, and torch {best} satisfies {most}",
        "another torch release fits the installed objects better",
        f"install torch {best}, or builds of these objects for torch {torch.version}",
        evidence + ((f"… {len(lost) - SHOWN} more",) if len(lost) > SHOWN else ()),
    )


def _conflict(scan: Scan, table: SymbolTable, found: Compatibility) -> tuple[str, ...]:
    if not found.conflict:
        return (f"torch {release_ranges(table, found.releases)} satisfies all",)
    return ("no release satisfies all; these exclude each other:",) + tuple(
        f"{scan.relative(need.object)}: torch {release_ranges(table, need.releases)}" for need in found.conflict.needs
    )


def _undeclared(scan: Scan, table: SymbolTable, found: Compatibility) -> Iterator[Finding]:
    """Where torch is still to be chosen: releases that a distribution's metadata admits, and its objects don't."""
    by_label: dict[str, list[Need]] = {}
    for need in found.needs:
        by_label.setdefault(scan.owner_label(need.object), []).append(need)
    for distribution in scan.distributions:
        needs = by_label.get(distribution.label, [])
        if not needs:
            continue
        fitting = set(table.versions).intersection(*(need.releases for need in needs))
        admitted = _admitted(distribution, table)
        wrong = [version for version in table.versions if version in admitted and version not in fitting]
        if not wrong:
            continue
        ranges = release_ranges(table, fitting)
        line = next((line for line in distribution.requires if _names_torch(line)), "")
        says = f"asks for {line}" if line else "does not mention torch"
        yield Finding(
            check=ID,
            severity=Severity.WARNING,
            object="",
            message=f"{distribution.label} needs torch {ranges}, and its metadata {says}",
            cause="a distribution admits torch releases that its objects cannot load with",
            remedy=f"install it together with torch {ranges}"
            if fitting
            else "install the objects' distributions for one torch, and set the others aside",
            evidence=tuple(
                f"{scan.relative(need.object)}: torch {release_ranges(table, need.releases)}" for need in needs[:SHOWN]
            ),
            distribution=distribution.label,
        )


def _names_torch(line: str) -> bool:
    try:
        return canonicalize_name(Requirement(line).name) == "torch"
    except InvalidRequirement:
        return False


def _admitted(distribution: Distribution, table: SymbolTable) -> set[str]:
    """The releases of the table that a distribution's requirements allow."""
    allowed = SpecifierSet()
    for line in distribution.requires:
        if _names_torch(line) and "extra" not in str(Requirement(line).marker or ""):
            allowed &= Requirement(line).specifier
    return {version for version in table.versions if allowed.contains(version)}


def _whole(severity: Severity, message: str, cause: str, remedy: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        check=ID, severity=severity, object="", message=message, cause=cause, remedy=remedy, evidence=evidence
    )


CHECK = Check((ID,), run, __doc__)
