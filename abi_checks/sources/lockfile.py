"""A lock file in pip's format: the environment that its wheels would become.

Each wheel is taken from a wheelhouse, else from uv's cache, else read from the index over ranges.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from abi_checks.errors import SourceError, UsageError
from abi_checks.sources.index import Link, resolve
from abi_checks.sources.overlay import WheelsSource
from abi_checks.sources.selection import PythonVersion, best, running_python
from abi_checks.sources.wheel import read_wheel
from abi_checks.uv import uv_cache
from abi_checks.versions import same_version

_HASH = re.compile(r"\s--hash=sha256:([0-9a-f]{64})")
_OPTION = re.compile(r"\s--?[a-z].*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One line of a lock: ``name==version``, or ``name @ URL``, with the hashes its file may have."""

    name: str
    """Normalised."""
    version: str
    url: str
    hashes: frozenset[str]

    @property
    def requirement(self) -> str:
        """The line without its hashes."""
        return f"{self.name}=={self.version}"


def read_lock(path: Path, python: PythonVersion) -> list[LockedWheel]:
    """The lines of a lock whose markers hold for ``python``; raises UsageError for a line that pins nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read this lock file: {error}") from error
    version = f"{python[0]}.{python[1]}"
    environment = {"python_version": version, "python_full_version": f"{version}.0"}
    locked: list[LockedWheel] = []
    for number, line in _logical_lines(text):
        if line.startswith("-"):
            continue
        try:
            requirement = Requirement(_OPTION.sub("", line))
        except InvalidRequirement as error:
            raise UsageError(f"{path}:{number}: not a requirement: {error}") from error
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        pins = list(requirement.specifier)
        exact = len(pins) == 1 and pins[0].operator == "==" and "*" not in pins[0].version
        if not exact and not requirement.url:
            raise UsageError(
                f"{path}:{number}: {requirement.name} is not pinned with '==' or a URL; a lock names exact versions"
            )
        url, _, fragment = (requirement.url or "").partition("#")
        hashes = {*_HASH.findall(line), *re.findall(r"^sha256=([0-9a-f]{64})$", fragment)}
        pinned = pins[0].version if exact else f"{_filename(url)}-".split("-")[1]
        locked.append(LockedWheel(canonicalize_name(requirement.name), pinned, url, frozenset(hashes)))
    if not locked:
        raise UsageError(f"{path}: pins nothing; is it a lock file?")
    return locked


def lock_source(path: Path, wheelhouse: Path | None = None, python: PythonVersion | None = None) -> WheelsSource:
    """The environment that a lock's wheels would become.

    Raises SourceError where a wheel is nowhere to be had, and where the wheelhouse's file has another hash.
    """
    python = python or running_python()
    found, wanted = _local(read_lock(path, python), wheelhouse, python)
    found += [Link(item.name, item.version, _filename(item.url), item.url, "") for item in wanted if item.url]
    asked = [item for item in wanted if not item.url]
    if asked:
        hashes = [known for item in asked for known in item.hashes]
        found += resolve([item.requirement for item in asked], python, hashes=hashes)
    return _source(path, found, python)


def local_lock_source(
    path: Path,
    wheelhouse: Path | None = None,
    python: PythonVersion | None = None,
    interpreter: Path | None = None,
) -> tuple[WheelsSource | None, tuple[str, ...]]:
    """The same where every wheel is on this machine, in the wheelhouse or in uv's cache; else None, and which are not.

    ``interpreter`` is one of that Python, where the caller knows one.

    Raises SourceError where the wheelhouse's file has another hash.
    """
    python = python or running_python()
    found, wanted = _local(read_lock(path, python), wheelhouse, python)
    if wanted:
        return None, tuple(item.requirement for item in wanted)
    return _source(path, found, python, interpreter), ()


def _local(
    lock: Sequence[LockedWheel], wheelhouse: Path | None, python: PythonVersion
) -> tuple[list[Link], list[LockedWheel]]:
    """The lock's wheels that are on this machine, and the others."""
    cached = _cached_folders(uv_cache(Path()))
    found: list[Link] = []
    wanted: list[LockedWheel] = []
    for locked in lock:
        # In the cache the same wheel lies unpacked, so that nothing need be inflated.
        link = _in_cache(locked, cached.get(locked.name, ()), python)
        link = link or (_in_wheelhouse(locked, wheelhouse, python) if wheelhouse else None)
        if link:
            found.append(link)
        else:
            wanted.append(locked)
    return found, wanted


def _source(path: Path, links: Sequence[Link], python: PythonVersion, interpreter: Path | None = None) -> WheelsSource:
    ordered = sorted(links, key=lambda link: link.name)
    wheels = [read_wheel(link.location, link.filename) for link in ordered]
    return WheelsSource(str(path), wheels, python, complete=True, interpreter=interpreter)


def _filename(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each entry, without comments and with continued lines joined."""
    parts: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(), 1):
        if not parts:
            start = number
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        parts.append(stripped.removesuffix("\\"))
        if not stripped.endswith("\\"):
            entry = " ".join(parts).strip()
            parts = []
            if entry:
                yield start, entry


def _in_wheelhouse(locked: LockedWheel, wheelhouse: Path, python: PythonVersion) -> Link | None:
    offers = [path.name for path in wheelhouse.glob("*.whl") if _is(locked, path.name)]
    chosen = best(offers, python)
    if chosen is None:
        return None
    with (wheelhouse / chosen).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if locked.hashes and sha256 not in locked.hashes:
        raise SourceError(
            f"{wheelhouse / chosen}: its sha256 is {sha256}, which the lock does not list; fetch it again"
        )
    return Link(locked.name, locked.version, chosen, str(wheelhouse / chosen), sha256)


def _cached_folders(cache: Path) -> Mapping[str, Sequence[Path]]:
    """Name of a distribution → the folders that uv's cache has for it, one for each index it came from."""
    folders: dict[str, list[Path]] = {}
    for pattern in ("wheels-v*/*/*", "wheels-v*/*/*/*"):
        for folder in sorted(cache.glob(pattern)):
            folders.setdefault(folder.name, []).append(folder)
    return folders


def _in_cache(locked: LockedWheel, folders: Iterable[Path], python: PythonVersion) -> Link | None:
    """A wheel that uv keeps unpacked: ``wheels-vN/INDEX/NAME/VERSION-TAGS``, a link to its content (uv 0.8 to 0.13).

    The layout is uv's own affair; where it differs nothing is found, and the index is asked. The hash of the wheel
    stands in the file beside the link, which must name one that the lock allows.
    """
    for entry in sorted(entry for folder in folders for entry in folder.glob(f"{locked.version}-*")):
        infos = list(entry.glob("*.dist-info/WHEEL")) if entry.is_dir() else []
        if len(infos) != 1 or not _hash_beside(entry, locked.hashes):
            continue
        # Long lists of tags are shortened in the link's name, so the wheel itself is asked.
        stem = infos[0].parent.name.removesuffix(".dist-info")
        tags = re.findall(r"^Tag: *(\S+)", infos[0].read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        filename = best((f"{stem}-{tag}.whl" for tag in tags), python)
        if filename and _is(locked, filename):
            return Link(locked.name, locked.version, filename, str(entry.resolve()), "")
    return None


def _hash_beside(entry: Path, hashes: frozenset[str]) -> bool:
    """Whether uv's note on where it got a wheel names one of ``hashes``."""
    notes = (entry.with_name(entry.name + suffix) for suffix in (".http", ".rev"))  # from a server, from a file
    known = b"".join(note.read_bytes() for note in notes if note.is_file())
    return not hashes or any(sha256.encode() in known for sha256 in hashes)


def _is(locked: LockedWheel, filename: str) -> bool:
    """Whether a wheel's file name is that of the locked distribution."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
        return name == locked.name and same_version(str(version), locked.version)
    except InvalidWheelFilename:
        return False
