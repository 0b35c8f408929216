"""Which patches an environment carries, read from the content of its files alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.utils import canonicalize_name

from stack.patching.environment import Environment
from stack.patching.record import record_hash, recorded_hash
from stack.patching.series import Patch, Series
from stack.patching.transaction import sha256


class State(StrEnum):
    """What one patch is in one environment."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    HALF = "half applied"
    EDITED = "edited by hand"
    MISSING = "file missing"
    OTHER_BUILD = "another build"
    """The version is right, and a file is as its wheel installed it, and yet not the one the patch was made for."""
    OTHER_VERSION = "another version"
    """The distribution, or one that the patch is applied together with, is of another version or absent."""


SOUND = frozenset({State.APPLIED, State.NOT_APPLIED})
"""The states that apply and revert start from."""
BROKEN = frozenset({State.HALF, State.EDITED, State.MISSING, State.OTHER_BUILD})
"""The states that a person has to look at."""


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """One patch by name, with all its parts: a patch that spans distributions has one part for each."""

    name: str
    parts: tuple[Patch, ...]
    state: State
    detail: str
    """Why it is in this state, with the files concerned; "" where there is nothing to add."""

    @property
    def default(self) -> bool:
        """Whether builds apply it without being asked."""
        return self.parts[0].default


@dataclass(frozen=True, slots=True)
class _Judgement:
    """The state of one file of one patch."""

    state: State
    path: str
    detail: str = ""


def patch_statuses(environment: Environment, all_series: Sequence[Series]) -> list[PatchStatus]:
    """The status of every patch there is for the distributions of ``environment``, in series order.

    A distribution with patches for other versions only is reported as such; one that is not installed is left out.
    """
    installed = environment.installed()
    matching = {f"{s.distribution}-{s.version}": s for s in all_series if _version(installed, s) == s.version}
    covered = {canonicalize_name(s.distribution) for s in matching.values()}
    statuses: list[PatchStatus] = []
    seen: set[str] = set()
    for series in matching.values():
        for patch in series.patches:
            if patch.name not in seen:
                seen.add(patch.name)
                statuses.append(_status(environment, patch, matching, installed))
    for series in all_series:
        version = _version(installed, series)
        if version is None or canonicalize_name(series.distribution) in covered:
            continue
        for patch in series.patches:
            if patch.name not in seen:
                seen.add(patch.name)
                detail = f"made for {series.distribution} {series.version}, and {version} is installed"
                statuses.append(PatchStatus(patch.name, (patch,), State.OTHER_VERSION, detail))
    return statuses


def _version(installed: Mapping[str, tuple[str, Path]], series: Series) -> str | None:
    found = installed.get(canonicalize_name(series.distribution))
    return found[0] if found else None


def _status(
    environment: Environment,
    patch: Patch,
    matching: Mapping[str, Series],
    installed: Mapping[str, tuple[str, Path]],
) -> PatchStatus:
    parts = [patch]
    for release in patch.together_with:
        partner = (
            next((p for p in matching[release].patches if p.name == patch.name), None) if release in matching else None
        )
        if partner is None:
            detail = f"is applied together with its part for {release}, which is not what is installed"
            return PatchStatus(patch.name, (patch,), State.OTHER_VERSION, detail)
        parts.append(partner)
    judgements = [
        _judge(environment, matching[part.release], part, file.path, installed) for part in parts for file in part.files
    ]
    state, detail = _combine(judgements)
    return PatchStatus(patch.name, tuple(parts), state, detail)


def _judge(
    environment: Environment,
    series: Series,
    patch: Patch,
    path: str,
    installed: Mapping[str, tuple[str, Path]],
) -> _Judgement:
    target = environment.site_packages / path
    if not target.is_file():
        return _Judgement(State.MISSING, path, f"{path} is not in {environment.site_packages}")
    data = target.read_bytes()
    position = chain_position(series, path, sha256(data))
    if position is not None:
        applied = patch.name in [earlier.name for earlier in series.chain(path)[:position]]
        return _Judgement(State.APPLIED if applied else State.NOT_APPLIED, path)
    record = installed[canonicalize_name(series.distribution)][1] / "RECORD"
    if record.is_file() and recorded_hash(record.read_bytes(), path) == record_hash(data):
        return _Judgement(
            State.OTHER_BUILD,
            path,
            f"{path} is as its wheel installed it, and not the file of the {series.distribution} {series.version} "
            f"that this patch was made for (SHA-256 {sha256(data)})",
        )
    return _Judgement(
        State.EDITED, path, f"{path} is neither as installed nor as any patch leaves it (SHA-256 {sha256(data)})"
    )


def chain_position(series: Series, path: str, digest: str) -> int | None:
    """How many patches of the chain of ``path`` a file with this SHA-256 carries; None where it is not of the chain."""
    chain = series.chain(path)
    files = [file for patch in chain for file in patch.files if file.path == path]
    digests = [files[0].before, *(file.after for file in files)]
    return digests.index(digest) if digest in digests else None


def _combine(judgements: Iterable[_Judgement]) -> tuple[State, str]:
    by_state: dict[State, list[_Judgement]] = {}
    for judgement in judgements:
        by_state.setdefault(judgement.state, []).append(judgement)
    for state in (State.MISSING, State.EDITED, State.OTHER_BUILD):
        if state in by_state:
            return state, "; ".join(judgement.detail for judgement in by_state[state])
    if len(by_state) > 1:
        applied = ", ".join(judgement.path for judgement in by_state[State.APPLIED])
        untouched = ", ".join(judgement.path for judgement in by_state[State.NOT_APPLIED])
        return State.HALF, f"{applied} carries it, {untouched} does not"
    return next(iter(by_state)), ""
