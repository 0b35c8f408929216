"""What is installed in an environment, compared with a lock and with the RECORD of every distribution."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from abi_checks.errors import SourceError
from abi_checks.records import below
from abi_checks.versions import same_version

HASHING_THREADS = 2
CHUNK = 1 << 20

UNRECORDED = frozenset({"_virtualenv.pth", "_virtualenv.py"})
"""Files that uv puts into site-packages of every environment it makes; no distribution owns them."""


@dataclass(frozen=True, slots=True)
class InstalledDistribution:
    """One distribution found in site-packages: its normalised name, its version and its metadata folder."""

    name: str
    version: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an environment compares with what it should be. ``problems`` is empty where it is exactly that."""

    distributions: int
    files: int
    hashed: int
    """Bytes whose sha256 was computed and compared."""

    problems: tuple[str, ...]


def site_packages(environment: Path) -> Path:
    """The site-packages folder of a virtual environment.

    :raises SourceError: the folder is not a virtual environment
    """
    found = sorted(environment.glob("lib/python3.*/site-packages"))
    if len(found) != 1:
        raise SourceError(f"{environment}: is not a virtual environment (no lib/python3.*/site-packages)")
    return found[0]


def installed_distributions(packages: Path) -> tuple[InstalledDistribution, ...]:
    """The distributions of a site-packages folder, sorted by name; one that is installed twice appears twice."""
    found = []
    for folder in packages.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        found.append(InstalledDistribution(canonicalize_name(name), version, folder))
    return tuple(sorted(found, key=lambda item: (item.name, item.version)))


def torch_build(packages: Path) -> str:
    """torch's ``__version__``, which names the CUDA build also where the distribution does not; "" without torch."""
    try:
        text = (packages / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def compare(
    environment: Path, versions: Mapping[str, str], overlaps: Collection[tuple[str, str]], *, deep: bool = False
) -> Comparison:
    """Compare an environment with locked versions (distribution → version) and with its RECORD files.

    Every distribution must be there in its version, and no other; every file that a RECORD lists must be there with
    its size, and with ``deep`` its sha256; no file may lie in site-packages that no RECORD lists, except what Python
    compiles. Where two RECORDs disagree about a path, ``overlaps`` (pairs of winner and loser) must say which holds.

    :raises SourceError: the folder is not a virtual environment
    """
    packages = site_packages(environment)
    distributions = installed_distributions(packages)
    problems = list(_version_problems(distributions, versions))
    claims, unreadable = _read_claims(packages, distributions)
    problems += unreadable
    held, contested = _settle(claims, set(overlaps))
    problems += contested
    to_hash: list[tuple[str, str]] = []
    for path, claim in held.items():
        if problem := _size_problem(path, claim.size):
            problems.append(f"{claim.distribution}: {os.path.relpath(path, packages)} {problem}")
        elif deep and claim.digest:
            to_hash.append((path, claim.digest))
    problems += [f"{path}: no distribution owns this file" for path in _strays(packages, claims)]
    hashed = 0
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        for (path, _), (size_read, problem) in zip(to_hash, pool.map(_hash_problem, to_hash), strict=True):
            hashed += size_read
            if problem:
                problems.append(f"{held[path].distribution}: {os.path.relpath(path, packages)} {problem}")
    return Comparison(len(distributions), len(claims), hashed, tuple(problems))


def beaten_winners(environment: Path, overlaps: Collection[tuple[str, str]]) -> set[str]:
    """The winners of ``overlaps`` (pairs of winner and loser) whose files are not the ones that lie there.

    :raises SourceError: the folder is not a virtual environment
    """
    packages = site_packages(environment)
    claims, _ = _read_claims(packages, installed_distributions(packages))
    contested = {path: rows for path, rows in claims.items() if len({(row.digest, row.size) for row in rows}) > 1}
    held, _ = _settle(contested, set(overlaps))
    winners = {winner for winner, _ in overlaps}
    return {
        claim.distribution
        for path, claim in held.items()
        if claim.distribution in winners and (_size_problem(path, claim.size) or _hash_problem((path, claim.digest))[1])
    }


@dataclass(frozen=True, slots=True)
class _Claim:
    """A row of a RECORD: what a distribution says a file is."""

    distribution: str
    digest: str
    size: str


def _read_claims(
    packages: Path, distributions: Iterable[InstalledDistribution]
) -> tuple[dict[str, list[_Claim]], list[str]]:
    """Absolute path → the claims to it, and what could not be read."""
    claims: dict[str, list[_Claim]] = {}
    problems = []
    prefix = os.path.normpath(packages) + "/"
    for distribution in distributions:
        try:
            with (distribution.folder / "RECORD").open(newline="", encoding="utf-8") as stream:
                rows = [row for row in csv.reader(stream) if row]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            problems.append(f"{distribution.name} {distribution.version}: its RECORD cannot be read: {error}")
            continue
        for row in rows:
            path, digest, size = (*row, "", "")[:3]
            claims.setdefault(below(prefix, path), []).append(_Claim(distribution.name, digest, size))
    return claims, problems


def _settle(
    claims: Mapping[str, list[_Claim]], overlaps: set[tuple[str, str]]
) -> tuple[dict[str, _Claim], Iterator[str]]:
    """The claim that holds for each path, and a text for each group of distributions that nothing decides between."""
    held: dict[str, _Claim] = {}
    contested: dict[tuple[str, ...], list[str]] = {}
    for path, rows in claims.items():
        if len({(row.digest, row.size) for row in rows}) == 1:
            held[path] = rows[0]
            continue
        winners = [row for row in rows if all(o is row or (row.distribution, o.distribution) in overlaps for o in rows)]
        if winners:
            held[path] = winners[0]
        else:
            contested.setdefault(tuple(row.distribution for row in rows), []).append(path)
    texts = (
        f"{' and '.join(names)} both install {paths[0]}"
        + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        + " with different content, and chance decides which one lies there: name the winner in [[overlaps]]"
        for names, paths in contested.items()
    )
    return held, texts


def _version_problems(distributions: tuple[InstalledDistribution, ...], versions: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    for item in distributions:
        wanted = versions.get(item.name)
        if item.name in seen:
            yield f"{item.name}: is installed twice"
        elif wanted is None:
            yield f"{item.name} {item.version}: is installed and not in the lock"
        elif not same_version(item.version, wanted):
            yield f"{item.name}: {item.version} is installed, and the lock has {wanted}"
        seen.add(item.name)
    for name in sorted(set(versions) - seen):
        yield f"{name} {versions[name]}: is in the lock and not installed"


def _size_problem(path: str, size: str) -> str:
    try:
        actual = os.stat(path).st_size
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    return f"has {actual} bytes instead of {size}" if size and size != str(actual) else ""


def _hash_problem(item: tuple[str, str]) -> tuple[int, str]:
    path, recorded = item
    algorithm, _, value = recorded.partition("=")
    count = 0
    try:
        digest = hashlib.new(algorithm)
        with open(path, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                count += len(chunk)
    except (OSError, ValueError) as error:
        return count, f"cannot be hashed: {error}"
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return count, "" if found == value.rstrip("=") else f"has {algorithm} {found} instead of {value}"


def _strays(packages: Path, owned: Container[str]) -> Iterator[str]:
    for folder, names, files in os.walk(packages):
        if "__pycache__" in names:
            names.remove("__pycache__")
        for name in files:
            path = os.path.join(folder, name)
            if path not in owned and name not in UNRECORDED:
                yield os.path.relpath(path, packages)
