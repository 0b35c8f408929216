"""A folder of wheels, and a single wheel: judged as the environment they would become."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from abi_checks.errors import SourceError, UsageError
from abi_checks.sources.interface import Unreadable
from abi_checks.sources.overlay import WheelsSource
from abi_checks.sources.selection import PythonVersion, best, preference, running_python
from abi_checks.sources.wheel import read_wheel

_CPYTHON = re.compile(r"-cp3(\d+)-cp3\d+-")


def wheel_source(path: Path, python: PythonVersion | None = None) -> WheelsSource:
    """One wheel; Python's version is the running one where the wheel fits it, else the one it was built for."""
    python = python or _python_for([path.name])
    return WheelsSource(str(path), [read_wheel(str(path), path.name)], python)


def wheelhouse_source(folder: Path, python: PythonVersion | None = None) -> WheelsSource:
    """The wheels of a folder, one for each distribution.

    A wheel that is damaged as a whole or doesn't fit the Python is reported as unreadable. Raises UsageError where the
    folder has several versions of one distribution, because then nobody can say which environment is meant, and
    SourceError where it can't be read or has no wheel.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".whl")
    except OSError as error:
        raise SourceError(f"{folder}: cannot read this folder: {error.strerror}") from error
    if not names:
        raise SourceError(f"{folder}: there is no wheel in this folder")
    python = python or _python_for(names)
    unreadable: list[Unreadable] = []
    versions: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for filename in names:
        try:
            name, version, _, _ = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            unreadable.append(Unreadable(filename, f"not the name of a wheel: {error}"))
            continue
        versions[name][str(version)].append(filename)
    wheels = []
    for distribution, files in sorted(versions.items()):
        if len(files) > 1:
            advice = "keep one, or name the lock file instead"
            raise UsageError(f"{folder}: holds {distribution} in the versions {' and '.join(sorted(files))}; {advice}")
        offers = next(iter(files.values()))
        chosen = best(offers, python)
        if chosen is None:
            why = f"no wheel of {distribution} here fits Python {python[0]}.{python[1]} on this kind of machine"
            unreadable.append(Unreadable(offers[0], why))
            continue
        try:
            wheels.append(read_wheel(str(folder / chosen), chosen))
        except SourceError as error:
            unreadable.append(Unreadable(chosen, str(error)))
    return WheelsSource(str(folder), wheels, python, unreadable, complete=True)


def _python_for(filenames: Iterable[str]) -> PythonVersion:
    """The Python that most of the wheels fit; the running one, if that is among them."""
    filenames = list(filenames)
    built_for = sorted({(3, int(minor)) for name in filenames for minor in _CPYTHON.findall(name)}, reverse=True)
    candidates = [running_python(), *built_for]
    return max(candidates, key=lambda python: sum(preference(name, python) is not None for name in filenames))
