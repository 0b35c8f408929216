"""Change several files of an environment so that either all change or none does, through a kill at any moment.

Everything new is first written into ``.cu130-stack-patch`` in site-packages and forced to disk. The journal's rename
into place there is the moment of decision: before it nothing outside that folder was touched, and the next command
throws the folder away; after it the next command finishes the renames. A file is only ever replaced by a rename,
never written to, because files of an environment made by uv are hard links into uv's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UserError

WORK_FOLDER = ".cu130-stack-patch"
_JOURNAL = "journal.json"


@dataclass(frozen=True, slots=True)
class Change:
    """The new content of one existing file; ``before`` is the SHA-256 (hex) of what it replaces."""

    target: Path
    before: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _Step:
    staged: Path
    target: Path
    before: str
    after: str


def sha256(data: bytes) -> str:
    """SHA-256 in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def exclusive(site_packages: Path) -> Iterator[None]:
    """Hold the environment for one command, after finishing or undoing what a killed one left; waits for another."""
    try:
        descriptor = os.open(site_packages, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SourceError(f"{site_packages}: cannot open the packages folder: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            _recover(site_packages)
            yield
        except OSError as error:
            raise SourceError(
                f"{error.filename or site_packages}: {error.strerror}; a change that had begun is finished by the next "
                "'cu130-stack patch' command that can write to this environment"
            ) from error
    finally:
        os.close(descriptor)


def commit(site_packages: Path, changes: Sequence[Change]) -> None:
    """Make all ``changes``, and remove the byte code of changed modules; call it inside :func:`exclusive`."""
    for change in changes:
        if change.target.stat().st_dev != site_packages.stat().st_dev:
            raise UserError(
                f"{change.target}: lies on another file system than {site_packages}, so it can't be replaced in one "
                "step; nothing was changed. Build the environment on one file system."
            )
    work = site_packages / WORK_FOLDER
    work.mkdir()
    steps = []
    for number, change in enumerate(changes):
        staged = work / str(number)
        _write(staged, change.data, stat.S_IMODE(change.target.stat().st_mode))
        steps.append(_Step(staged, change.target, change.before, sha256(change.data)))
    _sync_folder(work)
    _write(work / "journal.new", _dump(site_packages, steps), 0o644)
    (work / "journal.new").replace(work / _JOURNAL)
    _sync_folder(work)
    _finish(work, steps)


def _recover(site_packages: Path) -> None:
    work = site_packages / WORK_FOLDER
    if (work / _JOURNAL).is_file():
        _finish(work, _load(site_packages, work))
    elif work.exists():
        shutil.rmtree(work)


def _finish(work: Path, steps: Sequence[_Step]) -> None:
    for step in steps:
        _check(step)
    for step in steps:
        if step.staged.exists():
            step.staged.replace(step.target)
    for folder in {step.target.parent for step in steps}:
        _sync_folder(folder)
    for step in steps:
        if step.target.suffix == ".py":
            for stale in (step.target.parent / "__pycache__").glob(f"{step.target.stem}.*.pyc"):
                stale.unlink()
    (work / _JOURNAL).unlink()
    shutil.rmtree(work)


def _check(step: _Step) -> None:
    """A step must find its target as it was, or as it is to become, and nothing else."""
    found = sha256(step.target.read_bytes()) if step.target.is_file() else "no file"
    wanted = {step.before, step.after} if step.staged.is_file() else {step.after}
    if found not in wanted:
        raise UserError(
            f"{step.target}: was changed by something else while a patch was under way (SHA-256 {found}, expected "
            f"{' or '.join(sorted(wanted))}); nothing more was changed. Build the environment again."
        )


def _dump(site_packages: Path, steps: Sequence[_Step]) -> bytes:
    rows = [
        {
            "staged": step.staged.name,
            "target": os.path.relpath(step.target, site_packages),
            "before": step.before,
            "after": step.after,
        }
        for step in steps
    ]
    return json.dumps({"format": 1, "steps": rows}, indent=1).encode()


def _load(site_packages: Path, work: Path) -> list[_Step]:
    try:
        document = json.loads((work / _JOURNAL).read_bytes())
        return [
            _Step(
                work / row["staged"],
                Path(os.path.normpath(site_packages / row["target"])),
                row["before"],
                row["after"],
            )
            for row in document["steps"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{work / _JOURNAL}: cannot read the journal of an interrupted change: {error}; build the environment again"
        ) from error


def _write(path: Path, data: bytes, mode: int) -> None:
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
