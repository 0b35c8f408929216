"""Patch an installed environment, and say which patches it carries."""

from __future__ import annotations

from pathlib import Path

from stack.patching import engine
from stack.patching.environment import open_environment
from stack.patching.record import AppliedPatch, manifest_rows
from stack.patching.series import load_all
from stack.patching.status import PatchStatus, State

__all__ = ["AppliedPatch", "applied_series", "apply_default_series", "manifest_rows", "patch_status"]


def apply_default_series(env_root: Path) -> tuple[AppliedPatch, ...]:
    """Apply every patch that is on by default and fits what is installed; returns all that are applied afterwards.

    RECORD follows, so a check of the environment against its RECORD files passes. Raises UserError, with nothing
    changed, where a file is not exactly what a patch was made for.
    """
    outcome = engine.apply(open_environment(env_root), load_all(), ())
    return _applied(outcome.statuses)


def applied_series(env_root: Path) -> tuple[AppliedPatch, ...]:
    """The patches that an environment carries, after finishing what a killed patch command may have left."""
    return _applied(patch_status(env_root))


def patch_status(env_root: Path) -> tuple[PatchStatus, ...]:
    """The status of every patch in an environment, after finishing what a killed patch command may have left."""
    return tuple(engine.status(open_environment(env_root), load_all()))


def _applied(statuses: tuple[PatchStatus, ...]) -> tuple[AppliedPatch, ...]:
    return engine.applied_patches(status for status in statuses if status.state is State.APPLIED)
