"""Patch an installed environment, and say which patches it carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stack.patching import engine
from stack.patching.environment import open_environment
from stack.patching.record import manifest_rows
from stack.patching.series import PatchedFile, load_all
from stack.patching.status import PatchStatus, State

__all__ = ["AppliedPatch", "applied_patches", "apply_default_series", "manifest_rows", "patch_status"]


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """One patch that an environment carries, for one distribution."""

    distribution: str
    version: str
    name: str
    files: tuple[PatchedFile, ...]


def apply_default_series(env_root: Path) -> tuple[AppliedPatch, ...]:
    """Apply every patch that is on by default and fits what is installed; returns all that are applied afterwards.

    RECORD follows, so a check of the environment against its RECORD files passes. Raises UserError, with nothing
    changed, where a file is not exactly what a patch was made for.
    """
    outcome = engine.apply(open_environment(env_root), load_all(), ())
    return applied_patches(outcome.statuses)


def patch_status(env_root: Path) -> list[PatchStatus]:
    """The status of every patch in an environment, after finishing what a killed patch command may have left."""
    return engine.status(open_environment(env_root), load_all())


def applied_patches(statuses: tuple[PatchStatus, ...]) -> tuple[AppliedPatch, ...]:
    """The applied ones among ``statuses``, one for each distribution that a patch changes."""
    return tuple(
        AppliedPatch(part.distribution, part.version, part.name, part.files)
        for status in statuses
        if status.state is State.APPLIED
        for part in status.parts
    )
