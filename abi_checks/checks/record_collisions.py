"""Files that two distributions claim.

Looks for: paths that the RECORD files of two installed distributions both list, as with cuDNN for CUDA 12 and 13, or
two OpenCVs: whichever was installed last overwrote the other, and removing either breaks both.
Decides: by RECORD (warning where a shared object is among the files, information otherwise). For an environment, the
size of the file on disk tells which distribution's copy is there, where the two sizes differ.
Can't see: whether files of the same size differ. Compiled Python files and empty __init__.py files are passed over.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.records import below
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution

ID = "record-collision"
SHOWN = 6


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per pair of distributions."""
    for (first, second), paths in _collisions(scan.distributions).items():
        objects = [path for path in paths if ".so" in os.path.basename(path)]
        shown = (objects + [path for path in paths if path not in objects])[:SHOWN]
        sizes = _recorded_sizes(scan.root, first), _recorded_sizes(scan.root, second)
        present = [_present(scan.root, path, first, second, *sizes) for path in shown]
        if not objects and all(sizes[0].get(path, -1) == sizes[1].get(path, -2) for path in paths):
            continue  # the same small files, as the __init__.py of a package that several distributions share
        yield Finding(
            check=ID,
            severity=Severity.WARNING if objects else Severity.INFO,
            object=shown[0],
            message=f"{first.label} and {second.label} both own this path"
            + (f" and {len(paths) - 1} more" if len(paths) > 1 else ""),
            cause=f"{first.name} and {second.name} overwrite each other's files",
            remedy="keep one of the two, and install it again after removing the other",
            evidence=tuple(present) + ((f"… {len(paths) - SHOWN} more",) if len(paths) > SHOWN else ()),
            distribution=second.label,
        )


def _collisions(distributions: tuple[Distribution, ...]) -> dict[tuple[Distribution, Distribution], list[str]]:
    seen: set[str] = set()
    shared: set[str] = set()
    for distribution in distributions:
        shared |= seen & distribution.files
        seen |= distribution.files
    owner: dict[str, Distribution] = {}
    found: dict[tuple[Distribution, Distribution], list[str]] = {}
    for distribution in distributions:
        for path in shared & distribution.files:
            if path in owner and not path.endswith((".pyc", ".pyo")):
                found.setdefault((owner[path], distribution), []).append(path)
            owner[path] = distribution
    return {pair: sorted(paths) for pair, paths in found.items()}


def _recorded_sizes(root: str, distribution: Distribution) -> dict[str, int]:
    """Path relative to the root → size that RECORD states; empty where RECORD isn't on disk."""
    folder, slash, _ = distribution.folder.rpartition("/")
    sizes = {}
    try:
        with open(
            os.path.join(root, distribution.folder, "RECORD"), encoding="utf-8", errors="replace", newline=""
        ) as file:
            for row in csv.reader(file):
                if len(row) == 3 and row[2].isdigit():
                    sizes[below(folder + slash, row[0])] = int(row[2])
    except (OSError, csv.Error):
        return {}
    return sizes


def _present(
    root: str, path: str, first: Distribution, second: Distribution, mine: dict[str, int], theirs: dict[str, int]
) -> str:
    try:
        size = os.stat(os.path.join(root, path)).st_size
    except OSError:
        return path
    claims = {first.label: mine.get(path), second.label: theirs.get(path)}
    if len(set(claims.values())) == 1:
        return f"{path}: both state the same size"
    winners = [label for label, stated in claims.items() if stated == size]
    return f"{path}: on disk is that of {winners[0]}" if winners else f"{path}: on disk is that of neither"


CHECK = Check((ID,), run, __doc__)
