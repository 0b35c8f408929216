"""What differs between two locks, builds or environments: distributions, their files, and what loads."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from abi_checks.api import check_environment
from abi_checks.errors import SourceError
from abi_checks.report.interface import ObjectResult
from abi_checks.resolution import Verdict
from abi_checks.sources.lockfile import read_lock as read_any_lock
from abi_checks.sources.selection import running_python
from stack.installed import installed_distributions, site_packages

NOT_OF_THE_WHEEL = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD", ".pyc")
"""Endings of paths in RECORD that the installer writes, so that they differ between two installations of one wheel."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of two: distribution → version, distribution → digests of its files, and what was found of each object.

    ``files`` are hashes of wheels for a lock, and of the installed files for an environment: comparable only with
    their like. ``objects`` is None where nothing is installed.
    """

    label: str
    versions: Mapping[str, str]
    files: Mapping[str, frozenset[str]]
    objects: Mapping[str, ObjectResult] | None


@dataclass(frozen=True, slots=True)
class Change:
    """A distribution whose version differs; "" where it is not there."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """An object that one side judges otherwise; ``why`` names what it lacks on the side where it fails."""

    path: str
    before: str
    after: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs. ``other_files``: distributions of the same version with other files.

    ``notes`` say what was not compared.
    """

    before: str
    after: str
    versions: tuple[Change, ...]
    other_files: tuple[str, ...]
    verdicts: tuple[VerdictChange, ...]
    notes: tuple[str, ...]

    @property
    def broken(self) -> int:
        """How many objects load on the first side and fail on the second."""
        return sum((item.before, item.after) == (Verdict.LOADS, Verdict.FAILS) for item in self.verdicts)

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps({"schema_version": 1, **asdict(self), "broken": self.broken}, indent=1) + "\n"


def read_side(path: Path) -> Side:
    """A lock file, a build's folder, or any virtual environment.

    :raises SourceError: it is none of these
    """
    if path.is_file():
        locked = read_any_lock(path, running_python())
        return Side(
            str(path),
            {item.name: item.version or item.url.rpartition("/")[2] for item in locked},
            {item.name: item.hashes for item in locked},
            None,
        )
    environment = path / "env" if (path / "env" / "pyvenv.cfg").is_file() else path
    if not environment.is_dir():
        raise SourceError(f"{path}: there is no such lock file, build or environment")
    packages = site_packages(environment)
    distributions = installed_distributions(packages)
    report = check_environment(environment)
    return Side(
        str(path),
        {item.name: item.version for item in distributions},
        {item.name: frozenset([_content(item.folder / "RECORD")]) for item in distributions},
        {_relative(item.path): item for item in report.objects},
    )


def compare_sides(before: Side, after: Side) -> Difference:
    """What differs between two sides."""
    names = sorted(before.versions.keys() | after.versions.keys())
    changes = tuple(
        Change(name, before.versions.get(name, ""), after.versions.get(name, ""))
        for name in names
        if before.versions.get(name) != after.versions.get(name)
    )
    notes = []
    other: tuple[str, ...] = ()
    if (before.objects is None) == (after.objects is None):
        same = [name for name in names if before.versions.get(name) == after.versions.get(name)]
        other = tuple(name for name in same if before.files[name] != after.files[name])
    else:
        notes.append("files were not compared: a lock has hashes of wheels, an environment of installed files")
    verdicts: tuple[VerdictChange, ...] = ()
    if before.objects is not None and after.objects is not None:
        verdicts = tuple(_verdict_changes(before.objects, after.objects))
    else:
        notes.append("verdicts were not compared: nothing is installed on the side of the lock")
    return Difference(before.label, after.label, changes, other, verdicts, tuple(notes))


def _verdict_changes(before: Mapping[str, ObjectResult], after: Mapping[str, ObjectResult]) -> list[VerdictChange]:
    changes = []
    for path in sorted(before.keys() & after.keys()):
        old, new = before[path], after[path]
        if old.verdict != new.verdict:
            failing = new if new.verdict is Verdict.FAILS else old
            why = (*failing.missing_libraries, *failing.unresolved_symbols)
            changes.append(VerdictChange(path, old.verdict, new.verdict, why))
    return changes


def _relative(path: str) -> str:
    """Below site-packages, so that environments of different Pythons can be compared."""
    return path.rpartition("site-packages/")[2]


def _content(record: Path) -> str:
    """A digest of what a RECORD says of the wheel's own files; scripts are left out, for they name the interpreter."""
    try:
        with record.open(newline="", encoding="utf-8") as stream:
            rows = sorted(row for row in csv.reader(stream) if row and not row[0].startswith("../"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{record}: cannot be read: {error}") from error
    kept = [row for row in rows if not row[0].endswith(NOT_OF_THE_WHEEL)]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()
