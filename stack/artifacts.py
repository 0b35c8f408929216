"""The very files that a lock installs on its platform, as the configured index offers them."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from abi_checks.errors import SourceError
from stack.definition import StackDefinition
from stack.lockfile import Lock
from stack.uv import run_uv

RESOLVE_SECONDS = 300.0
OLDEST_GLIBC = 5
"""Tags for glibc 2.this and newer exist (PEP 600: manylinux1 is manylinux_2_5)."""

LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Artifact:
    """One wheel: where it lies (a URL, or the path of a file), its size in bytes where that is known, its hash."""

    name: str
    version: str
    filename: str
    location: str
    size: int | None
    sha256: str

    @property
    def path(self) -> Path | None:
        """The file, where it lies on this machine."""
        parts = urlsplit(self.location)
        if parts.scheme == "file":
            return Path(url2pathname(parts.path))
        return None if parts.scheme else Path(self.location)


def resolve_pylock(requirements: str, python: str, platform: str, index: str | None = None) -> str:
    """A ``pylock.toml`` (PEP 751) of exactly these hashed requirements, for the index that uv is configured to use.

    ``index``: the address of another one.

    :raises SourceError: the index does not answer or does not have them; uv's message is part of the error
    """
    with tempfile.TemporaryDirectory(prefix="cu130-stack-pylock-") as name:
        (Path(name) / "lock.txt").write_text(requirements)
        result = run_uv(
            [
                *("pip", "compile", "lock.txt", "--quiet", "--no-deps", "--format", "pylock.toml", "--no-header"),
                *("--only-binary", ":all:", "--python-version", python, "--python-platform", platform),
                *(("--default-index", index) if index else ()),
            ],
            folder=Path(name),
            timeout=RESOLVE_SECONDS,
        )
    if result.returncode:
        raise SourceError(
            f"the package index does not give every file of the lock; uv says:\n{result.messages.rstrip()}"
        )
    return result.output


def index_artifacts(
    pylock: str, hashes: Mapping[str, Iterable[str]], python: str, glibc: str, machine: str
) -> list[Artifact]:
    """The wheel of each package of a ``pylock.toml`` that an installer takes, out of those the lock has a hash of.

    ``hashes``: distribution → sha256 of its locked files. ``glibc``: the oldest that the wheels must accept.

    :raises SourceError: no offered file has a locked hash and fits
    """
    ranks = _ranks(python, int(glibc.partition(".")[2]), machine)
    found = []
    for package in tomllib.loads(pylock).get("packages", []):
        name, version = canonicalize_name(package["name"]), package.get("version", "")
        allowed = set(hashes.get(name, ()))
        offers = offered_files(package)
        fitting = [
            (rank, item) for item in offers if item.sha256 in allowed and (rank := _rank(item, ranks)) is not None
        ]
        if not fitting:
            raise SourceError(
                f"{name} {version}: the index offers no wheel with a locked hash for Python {python}, {machine}, "
                f"glibc {glibc}; make the lock again if the index has replaced its files"
            )
        found.append(min(fitting, key=lambda pair: (pair[0], pair[1].filename))[1])
    return found


def lock_artifacts(definition: StackDefinition, lock: Lock, mirrors: Mapping[str, str]) -> list[Artifact]:
    """Every file of a stack's lock; ``mirrors`` as in :func:`stack.availability.survey`.

    :raises SourceError: the index does not have one of them
    """
    entries = "".join(item.entry() for item in lock.indexed)
    pylock = resolve_pylock(entries, lock.python, definition.platform) if lock.indexed else ""
    hashes = {item.name: item.hashes for item in lock.indexed}
    found = index_artifacts(pylock, hashes, lock.python, definition.glibc, definition.machine)
    for item in lock.direct:
        address = item.url
        for original, mirror in mirrors.items():
            if address.startswith(original):
                address = mirror + address.removeprefix(original)
        found.append(Artifact(item.name, item.version, item.filename, address, None, item.hashes[0]))
    return sorted(found, key=lambda item: item.filename)


def offered_files(package: Mapping[str, Any]) -> list[Artifact]:
    """The wheels of one package of a parsed ``pylock.toml``."""
    name, version = canonicalize_name(package["name"]), package.get("version", "")
    return [_artifact(name, version, entry) for entry in package.get("wheels", [])]


def _artifact(name: str, version: str, entry: Mapping[str, Any]) -> Artifact:
    location = entry.get("url") or str(Path(entry["path"]).resolve())
    filename = entry.get("name") or unquote(urlsplit(location).path).rpartition("/")[2]
    return Artifact(name, version, filename, location, entry.get("size"), entry.get("hashes", {}).get("sha256", ""))


def _ranks(python: str, newest: int, machine: str) -> dict[Tag, int]:
    """Tag → place in the order in which an installer on such a host prefers them."""
    platforms = []
    for minor in range(newest, OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in LEGACY:
            platforms.append(f"{LEGACY[minor]}_{machine}")
    platforms.append(f"linux_{machine}")
    version = (int(python.partition(".")[0]), int(python.partition(".")[2]))
    interpreter = f"cp{version[0]}{version[1]}"
    tags = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def _rank(item: Artifact, ranks: Mapping[Tag, int]) -> int | None:
    try:
        tags = parse_wheel_filename(item.filename)[3]
    except InvalidWheelFilename:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)
