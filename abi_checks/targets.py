"""From what a user names on the command line to the source that yields its objects."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UsageError
from abi_checks.sources.folder import FileTarget, FolderSource, enclosing_environment
from abi_checks.sources.interface import Source

LOCK_LINE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*\s*(==|@)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Target:
    """A source, and the paths (relative to its root) that the report is restricted to; all, where there are none."""

    source: Source
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else is named: requirements that join a requirement, the Python, and where a lock's wheels lie."""

    extras: tuple[str, ...] = ()
    python: tuple[int, int] | None = None
    wheelhouse: Path | None = None


def parse_python(text: str) -> tuple[int, int]:
    """``3.12`` → (3, 12). Raises UsageError for anything else."""
    match = re.fullmatch(r"3\.(\d+)", text)
    if not match:
        raise UsageError(f"--python takes a version such as 3.12, not {text!r}")
    return 3, int(match[1])


def find_target(text: str, around: Surroundings) -> Target:
    """The target that ``text`` names: a path, if there is one of that name, else a requirement.

    Raises UsageError where it is neither, SourceError where it can't be read.
    """
    path = Path(text)
    if around.extras and path.exists():
        raise UsageError(f"--with adds requirements to a requirement, and {text} is a file or folder")
    if path.is_dir():
        return _folder(path, around)
    if path.is_file():
        return _file(path, around)
    if path.is_symlink():
        raise SourceError(f"{text}: a symbolic link to {os.readlink(path)}, which does not exist")
    if "/" in text or text.endswith((".so", ".whl", ".txt")):
        raise SourceError(f"{text}: no such file or folder")
    from abi_checks.sources.requirement import requirement_source

    return Target(requirement_source(text, around.extras, around.python))


def _folder(path: Path, around: Surroundings) -> Target:
    if not (path / "pyvenv.cfg").is_file() and _has_wheels(path):
        from abi_checks.sources.wheelhouse import wheelhouse_source

        return Target(wheelhouse_source(path, around.python))
    return Target(FolderSource(path))


def _has_wheels(path: Path) -> bool:
    try:
        return any(name.endswith(".whl") for name in os.listdir(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot read this folder: {error.strerror}") from error


def _file(path: Path, around: Surroundings) -> Target:
    if path.suffix == ".whl":
        from abi_checks.sources.wheelhouse import wheel_source

        return Target(wheel_source(path, around.python))
    if path.suffix == ".txt" and _is_lock(path):
        from abi_checks.sources.lockfile import lock_source

        return Target(lock_source(path, around.wheelhouse, around.python))
    environment = enclosing_environment(path)
    if environment:
        # Judged inside its environment, as it will be loaded, and reported alone.
        return Target(FolderSource(environment), (os.path.relpath(os.path.abspath(path), environment),))
    return Target(FileTarget(path))


def _is_lock(path: Path) -> bool:
    try:
        return bool(LOCK_LINE.search(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False
