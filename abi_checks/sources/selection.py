"""Which of several wheels an installer would take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename

PythonVersion = tuple[int, int]

NEWEST_GLIBC = 60
"""Wheels for a glibc up to 2.this count as fitting: a check says that the host's is too old."""


@lru_cache(maxsize=4)
def _ranks(python: PythonVersion) -> dict[Tag, int]:
    """Tag → place in the order in which an installer for CPython ``python`` on this kind of machine prefers them."""
    platforms = list(platform_tags())
    newer = [f"manylinux_2_{minor}_{os.uname().machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    platforms += [platform for platform in newer if platform not in platforms]
    tags = [
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, f"cp{python[0]}{python[1]}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def preference(filename: str, python: PythonVersion) -> tuple[int, BuildTag] | None:
    """How much an installer would like a wheel, the greatest most; None where none of its tags fits."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    ranks = _ranks(python)
    fitting = [ranks[tag] for tag in tags if tag in ranks]
    return (-min(fitting), build) if fitting else None


def best(filenames: Iterable[str], python: PythonVersion) -> str | None:
    """The wheel an installer would take of several for one version of one distribution; None where none fits."""
    liked = [(liking, name) for name in filenames if (liking := preference(name, python)) is not None]
    return max(liked)[1] if liked else None


def running_python() -> PythonVersion:
    """The version of the running interpreter."""
    return sys.version_info[:2]
