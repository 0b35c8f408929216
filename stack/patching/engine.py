"""Apply and revert patches: all files of a request or none, and only on the exact files the patches were made for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import whatthepatch
from packaging.utils import canonicalize_name
from whatthepatch.exceptions import WhatThePatchException

from abi_checks.errors import UsageError, UserError
from stack.patching.environment import Environment
from stack.patching.record import AppliedPatch, follow, follow_manifest
from stack.patching.series import Patch, Series, file_diffs
from stack.patching.status import BROKEN, SOUND, PatchStatus, State, chain_position, patch_statuses
from stack.patching.transaction import Change, commit, exclusive, sha256

_REMEDY = "nothing was changed; build the environment again, or install the distribution again, and patch that"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did: the statuses after it, and the names of the patches it applied or reverted."""

    statuses: tuple[PatchStatus, ...]
    changed: tuple[str, ...]


def status(environment: Environment, all_series: Sequence[Series]) -> list[PatchStatus]:
    """The status of every patch, after finishing what a killed command may have left."""
    with exclusive(environment.site_packages):
        return patch_statuses(environment, all_series)


def apply(environment: Environment, all_series: Sequence[Series], names: Sequence[str]) -> Outcome:
    """Apply the patches ``names``, or with no names those that are on by default and fit what is installed.

    Raises UserError where a file is not exactly what a patch was made for; nothing is changed then.
    """
    with exclusive(environment.site_packages):
        statuses = patch_statuses(environment, all_series)
        if names:
            wanted = [find(statuses, name, all_series) for name in names]
        else:
            wanted = [s for s in statuses if s.default and s.state is not State.OTHER_VERSION]
        _refuse(wanted)
        carried = {s.name for s in statuses if s.state is State.APPLIED}
        return _bring_to(environment, all_series, statuses, carried | {s.name for s in wanted})


def revert(environment: Environment, all_series: Sequence[Series], names: Sequence[str]) -> Outcome:
    """Revert the patches ``names``, or with no names all that are applied, to the exact bytes before them."""
    with exclusive(environment.site_packages):
        statuses = patch_statuses(environment, all_series)
        if names:
            unwanted = [find(statuses, name, all_series) for name in names]
        else:
            unwanted = [s for s in statuses if s.state in BROKEN | {State.APPLIED}]
        _refuse(unwanted)
        carried = {s.name for s in statuses if s.state is State.APPLIED}
        return _bring_to(environment, all_series, statuses, carried - {s.name for s in unwanted})


def applied_patches(statuses: Iterable[PatchStatus]) -> tuple[AppliedPatch, ...]:
    """``statuses`` as the manifest has them, one for each distribution that a patch changes."""
    return tuple(
        AppliedPatch(part.distribution, part.version, part.name, part.files) for s in statuses for part in s.parts
    )


def find(statuses: Iterable[PatchStatus], name: str, all_series: Iterable[Series]) -> PatchStatus:
    """The status of the patch ``name``; UsageError where there is none, UserError where it is for other packages."""
    for candidate in statuses:
        if candidate.name == name:
            return candidate
    for series in all_series:
        if any(patch.name == name for patch in series.patches):
            raise UserError(f"patch {name} is for {series.distribution} {series.version}, which is not installed here")
    known = sorted({patch.name for series in all_series for patch in series.patches})
    raise UsageError(f"no patch is named {name!r}; there are {', '.join(known)}")


def _refuse(statuses: Iterable[PatchStatus]) -> None:
    refused = [s for s in statuses if s.state not in SOUND]
    if refused:
        raise UserError("\n".join([*(f"patch {s.name}: {s.state}: {s.detail}" for s in refused), _REMEDY]))


def _bring_to(
    environment: Environment, all_series: Sequence[Series], statuses: Sequence[PatchStatus], wanted: set[str]
) -> Outcome:
    """Make exactly the patches ``wanted``, all in a sound state, the applied ones."""
    changed = [s for s in statuses if (s.name in wanted) != (s.state is State.APPLIED)]
    if not changed:
        return Outcome(tuple(statuses), ())
    installed = environment.installed()
    changes: list[Change] = []
    for release in dict.fromkeys(part.release for s in changed for part in s.parts):
        series = next(s for s in all_series if f"{s.distribution}-{s.version}" == release)
        paths = dict.fromkeys(
            f.path for s in changed for part in s.parts if part.release == release for f in part.files
        )
        contents = {}
        for path in paths:
            target = environment.site_packages / path
            before = target.read_bytes()
            contents[path] = _rewritten(series, path, before, wanted)
            changes.append(Change(target, sha256(before), contents[path]))
        record = installed[canonicalize_name(series.distribution)][1] / "RECORD"
        if not record.is_file():
            raise UserError(f"{record.parent}: has no RECORD to follow the change; {_REMEDY}")
        before = record.read_bytes()
        changes.append(Change(record, sha256(before), follow(before, contents, record)))
    if environment.manifest:
        carried = applied_patches(s for s in statuses if s.name in wanted)
        before = environment.manifest.read_bytes()
        changes.append(Change(environment.manifest, sha256(before), follow_manifest(environment.manifest, carried)))
    commit(environment.site_packages, changes)
    return Outcome(tuple(patch_statuses(environment, all_series)), tuple(s.name for s in changed))


def _rewritten(series: Series, path: str, data: bytes, wanted: set[str]) -> bytes:
    """The content of ``path`` that carries the patches ``wanted`` of its chain, and no others."""
    chain = series.chain(path)
    position = chain_position(series, path, sha256(data))
    if position is None:
        raise UserError(f"{path}: its content is not of the series; {_REMEDY}")
    names = [patch.name for patch in chain]
    goal = sum(name in wanted for name in names)
    for lower, upper in pairwise(names):
        if upper in wanted and lower not in wanted:
            raise UsageError(f"{path}: patch {upper} lies over patch {lower}; the one can't be there without the other")
    for patch in chain[position:goal]:
        data = _transformed(patch, path, data, reverse=False)
    for patch in reversed(chain[goal:position]):
        data = _transformed(patch, path, data, reverse=True)
    return data


def _transformed(patch: Patch, path: str, data: bytes, *, reverse: bool) -> bytes:
    """Apply one patch's diff to one file; context must match to the letter, and so must the result's SHA-256."""
    # Split at line feeds alone, so that joining gives every other byte back as it was.
    try:
        lines = whatthepatch.apply_diff(file_diffs(patch.diff)[path], data.decode("utf-8").split("\n"), reverse=reverse)
    except WhatThePatchException as error:
        raise UserError(f"patch {patch.name}: {path}: its diff does not fit: {error}. Nothing was changed.") from error
    result = "\n".join(lines).encode("utf-8")
    file = next(f for f in patch.files if f.path == path)
    expected = file.before if reverse else file.after
    if sha256(result) != expected:
        raise UserError(
            f"patch {patch.name}: {path}: its diff gives SHA-256 {sha256(result)} and series.toml says {expected}; "
            "the patch folder of this installation was changed. Nothing was changed."
        )
    return result
