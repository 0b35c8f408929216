"""Facts and answers as plain tuples, which is what the scan cache keeps, and back."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from abi_checks.answers import Answers
from abi_checks.elf_facts import DynamicSymbols, ElfFacts, Section
from abi_checks.facts import ObjectFacts
from abi_checks.fatbin import CodeKind, DeviceCode, FatBinaries
from abi_checks.process import ProcessState
from abi_checks.resolution import Crowded, Found, Missing, Resolution, Unresolved, Verdict
from abi_checks.sources.interface import Distribution, SourceObject

Row = tuple[Any, ...]
_ELF_FIELDS = tuple(field.name for field in fields(ElfFacts) if field.name not in ("path", "symbols"))
_SECTIONS = _ELF_FIELDS.index("device_sections")


def row_of_object(facts: ObjectFacts) -> Row:
    """The facts of an object without its symbols, and without what each scan knows anew: its names."""
    elf = [getattr(facts.elf, name) for name in _ELF_FIELDS]
    elf[_SECTIONS] = tuple((section.name, section.offset, section.size) for section in facts.elf.device_sections)
    code = tuple(
        (group.linkable, tuple((c.kind.value, c.capability, c.suffix, c.ptx_version) for c in group.codes), group.count)
        for group in facts.device_code
    )
    return tuple(elf), code, facts.device_problem


def object_of_row(row: Row, symbols: DynamicSymbols, item: SourceObject, root: str) -> ObjectFacts:
    """The reverse of :func:`row_of_object`, for a file that has not changed."""
    elf, code, problem = row
    values = dict(zip(_ELF_FIELDS, elf, strict=True))
    values["device_sections"] = tuple(Section(*section) for section in values["device_sections"])
    groups = tuple(
        FatBinaries(linkable, tuple(DeviceCode(CodeKind(kind), *rest) for kind, *rest in codes), count)
        for linkable, codes, count in code
    )
    aliases = tuple(os.path.join(root, alias) for alias in item.aliases)
    facts = ElfFacts(path=os.path.join(root, item.path), symbols=symbols, **values)
    return ObjectFacts(facts, groups, problem, aliases, item.identity, item.stamp)


def row_of_distribution(found: Distribution) -> Row:
    """All of a distribution; its files as a tuple, since marshal sorts sets."""
    return found.name, found.version, found.folder, found.requires, found.tags, tuple(found.files)


def distribution_of_row(row: Row) -> Distribution:
    """The reverse of :func:`row_of_distribution`."""
    name, version, folder, requires, tags, files = row
    return Distribution(name, version, folder, requires, tags, frozenset(files))


def row_of_answers(answers: Answers) -> Row:
    """All answers."""
    state = answers.process
    return (
        (state.interpreter, state.interpreter_problem, state.torch, _rows(state.torch_problems), state.closure),
        _rows(answers.resolutions),
        {path: (_row(answer), siblings) for path, (answer, siblings) in answers.after_siblings.items()},
        answers.assumed_driver,
        answers.sonames,
        answers.needed_of_torch,
    )


def answers_of_row(row: Row) -> Answers:
    """The reverse of :func:`row_of_answers`."""
    (interpreter, interpreter_problem, torch, torch_problems, closure), resolutions, after, *rest = row
    return Answers(
        ProcessState(interpreter, interpreter_problem, torch, tuple(map(_resolution, torch_problems)), closure),
        tuple(map(_resolution, resolutions)),
        {path: (_resolution(answer), siblings) for path, (answer, siblings) in after.items()},
        *rest,
    )


def _rows(resolutions: tuple[Resolution, ...]) -> Row:
    return tuple(map(_row, resolutions))


def _row(resolution: Resolution) -> Row:
    return (
        resolution.path,
        resolution.verdict.value,
        {name: (found.path, found.found_via) for name, found in resolution.found.items()},
        tuple((gap.library, gap.required_by, gap.considered) for gap in resolution.missing),
        tuple((lack.symbol, lack.version, lack.required_by, lack.defined_by) for lack in resolution.unresolved),
        resolution.reason,
        resolution.closure,
        (room.required_by, room.needed, room.free, room.total) if (room := resolution.crowded) else None,
        resolution.foreign,
    )


def _resolution(row: Row) -> Resolution:
    path, verdict, found, missing, unresolved, reason, closure, crowded, foreign = row
    return Resolution(
        path,
        Verdict(verdict),
        {name: Found(*place) for name, place in found.items()},
        tuple(Missing(*gap) for gap in missing),
        tuple(Unresolved(*lack) for lack in unresolved),
        reason,
        closure,
        Crowded(*crowded) if crowded else None,
        foreign,
    )
