"""Symbols and symbol versions that no library in scope provides.

Looks for: strong references of each object, and of what it loads, that neither it, nor its libraries, nor the process
after ``import torch`` define; and symbol versions (GLIBC_2.38, GLIBCXX_3.4.32) that the library they are asked of
lacks.
Decides: as the dynamic loader does for dlopen with RTLD_NOW. Python opens extension modules with RTLD_NOW, so one
missing symbol is a failed import even if it would never be called. Weak references are no errors.
Can't see: symbols asked for at run time with dlsym, and references that a lazily bound library never makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.demangle import demangle
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.resolution import Resolution, Unresolved
from abi_checks.scan import Scan
from abi_checks.symbol_owners import Owner, OwnerRule, owner_of, uses_old_string_abi
from abi_checks.torch_symbols import NO_RELEASE, release_ranges, shipped_table

ID = "unresolved-symbol"
SHOWN = 8
NAMED_IN_CAUSE = 3
OUT_OF_SCOPE_REMEDY = "open the library that has the symbols with RTLD_GLOBAL before this object, as its package should"


@dataclass(frozen=True, slots=True)
class _Lack:
    """What one object lacks of one owner; symbols of the pre-C++11 string ABI stand apart, since their remedy
    differs."""

    facts: ElfFacts
    rule: OwnerRule
    old_strings: bool
    out_of_scope: bool
    """The target has the symbols, in libraries that this object does not link."""
    symbols: frozenset[Unresolved]

    @property
    def family(self) -> tuple[Owner, bool, bool]:
        return self.rule.owner, self.old_strings, self.out_of_scope


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object, owner and string ABI; objects that lack a symbol in common share their cause."""
    lacks = [
        lack
        for facts, resolution in zip(scan.objects, scan.resolutions, strict=True)
        if facts.path not in scan.after_siblings
        for lack in _split(facts, _own(facts, resolution))
    ]
    for family in dict.fromkeys(lack.family for lack in lacks):
        for cluster in _clusters([lack for lack in lacks if lack.family == family]):
            spread = Counter(_name(symbol) for lack in cluster for symbol in lack.symbols)
            ranked = [name for name, _ in sorted(spread.items(), key=lambda item: (-item[1], item[0]))]
            for lack in cluster:
                yield _finding(scan, lack, ranked)


def _split(facts: ElfFacts, own: list[Unresolved]) -> list[_Lack]:
    groups: dict[tuple[OwnerRule, bool, bool], set[Unresolved]] = {}
    for symbol in own:
        rule = owner_of(symbol.symbol, symbol.version)
        old = rule.owner is Owner.TORCH and uses_old_string_abi(symbol.symbol)
        groups.setdefault((rule, old, bool(symbol.defined_by)), set()).add(symbol)
    return [_Lack(facts, *family, frozenset(symbols)) for family, symbols in groups.items()]


def _clusters(lacks: list[_Lack]) -> list[list[_Lack]]:
    """Lacks joined wherever two have a symbol in common: one change of one library is one cause."""
    clusters: list[tuple[set[str], list[_Lack]]] = []
    for lack in lacks:
        names, members = {_name(symbol) for symbol in lack.symbols}, [lack]
        apart = []
        for other_names, other_members in clusters:
            if names.isdisjoint(other_names):
                apart.append((other_names, other_members))
            else:
                names |= other_names
                members = other_members + members
        clusters = [*apart, (names, members)]
    return [members for _, members in clusters]


def _own(facts: ElfFacts, resolution: Resolution) -> list[Unresolved]:
    """What the object itself lacks. Symbols of a library that wasn't found are the missing library's finding, unless
    they are torch's, whose libraries are in the process anyway."""
    own = [lack for lack in resolution.unresolved if lack.required_by == facts.path]
    # Where a library lacks a whole version, the version says it all, and the symbols of it go without saying.
    versions = {lack.version for lack in own if not lack.symbol}
    own = [lack for lack in own if not (lack.symbol and lack.version in versions)]
    if any(gap.required_by == facts.path for gap in resolution.missing):
        own = [lack for lack in own if not lack.symbol or owner_of(lack.symbol, lack.version).owner is Owner.TORCH]
    return own


def _finding(scan: Scan, lack: _Lack, ranked: list[str]) -> Finding:
    mine = {_name(symbol) for symbol in lack.symbols}
    names = [name for name in ranked if name in mine]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    owner = lack.rule.owner
    return Finding(
        check=ID,
        severity=Severity.ERROR if scan.can_judge(owner) else Severity.UNKNOWN,
        object=scan.relative(lack.facts.path),
        message=f"undefined symbol: {names[0]}{more}",
        cause=_cause(scan, lack, ranked),
        remedy=_remedy(scan, lack),
        evidence=tuple(f"undefined: {name}" for name in names[:SHOWN])
        + ((f"… {len(names) - SHOWN} more",) if len(names) > SHOWN else ()),
        distribution=scan.owner_label(lack.facts.path),
    )


def _remedy(scan: Scan, lack: _Lack) -> str:
    if lack.out_of_scope:
        return OUT_OF_SCOPE_REMEDY
    torch = scan.installed("torch")
    of_torch = (Owner.TORCH,) if torch else (Owner.TORCH, Owner.TORCH_STABLE)
    if lack.rule.owner not in of_torch:
        return lack.rule.remedy
    table = shipped_table()
    names = scan.needed_of_torch.get(lack.facts.path, ())
    fitting = release_ranges(table, table.releases_exporting(names))
    if fitting == NO_RELEASE:
        span = f"{table.versions[0]} to {table.versions[-1]}"
        return f"no torch release from {span} has all that this object needs: find the build of torch it was made with"
    if torch:
        return f"install torch {fitting}, or the build of its distribution made for torch {torch.version}"
    if scan.complete:
        return f"install torch {fitting} as well, or waive the finding where nothing uses this object"
    return f"judge it together with the torch it will run with; its symbols are those of torch {fitting}"


def _cause(scan: Scan, lack: _Lack, ranked: list[str]) -> str:
    listed = ", ".join(ranked[:NAMED_IN_CAUSE]) + (
        f" and {rest} more" if (rest := len(ranked) - NAMED_IN_CAUSE) > 0 else ""
    )
    owner = lack.rule.owner
    torch = scan.installed("torch")
    if lack.out_of_scope:
        where = ", ".join(sorted({scan.relative(symbol.defined_by) for symbol in lack.symbols}))
        return f"{where} has {listed}, and this object neither links it nor finds it in the global scope"
    if owner is Owner.TORCH and torch and lack.old_strings:
        return f"built with the pre-C++11 std::string, which torch {torch.version} does not use: {listed}"
    if owner in (Owner.TORCH, Owner.TORCH_STABLE) and torch:
        return f"torch {torch.version} does not export {listed}"
    if owner in (Owner.TORCH, Owner.TORCH_STABLE):
        return f"torch is not in this target, and its symbols are needed: {listed}"
    if any(not symbol.symbol for symbol in lack.symbols):
        return f"{owner} on this host lacks {listed}"
    return f"no library in scope defines {listed} ({owner})"


def _name(lack: Unresolved) -> str:
    if not lack.symbol:
        return f"version {lack.version}"
    return demangle(lack.symbol) + (f" (version {lack.version})" if lack.version else "")


CHECK = Check((ID,), run, __doc__)
