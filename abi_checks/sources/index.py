"""From a requirement to the file an installer would download, as uv resolves it with the user's own settings.

uv reads the indexes, credentials and mirrors that its settings and environment name, so nothing of that is known here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from abi_checks.errors import SourceError
from abi_checks.sources.selection import PythonVersion, best
from abi_checks.uv import run_uv

RESOLVE_SECONDS = 180.0
"""Within which uv must have asked the indexes."""


@dataclass(frozen=True, slots=True)
class Link:
    """A wheel that an index offers: where it lies (a URL or a path), and its hash."""

    name: str
    """Normalised."""
    version: str
    filename: str
    location: str
    sha256: str


def resolve(requirements: Sequence[str], python: PythonVersion, *, hashes: Iterable[str] = ()) -> list[Link]:
    """The wheels for ``requirements`` (PEP 508), without their dependencies.

    Where ``hashes`` (sha256, hexadecimal) are given, only files that have one of them count. Raises SourceError, with
    uv's own words where a requirement can't be satisfied, and where there is no wheel that fits.
    """
    arguments = [
        "pip",
        "compile",
        "--quiet",
        "--no-deps",
        "--format",
        "pylock.toml",
        "--no-header",
        "--only-binary",
        ":all:",
    ]
    # The widest platform: a wheel that needs a newer glibc than the host has is to be judged, not hidden.
    platform = f"{os.uname().machine}-manylinux_2_40"
    arguments += ["--python-version", f"{python[0]}.{python[1]}", "--python-platform", platform, "-"]
    result = run_uv(arguments, folder=Path(), timeout=RESOLVE_SECONDS, stdin="\n".join(requirements))
    if result.returncode:
        raise SourceError(f"uv could not resolve {', '.join(requirements)[:200]}:\n{result.messages.strip()}")
    document = tomllib.loads(result.output)
    allowed = set(hashes)
    links = []
    for package in document.get("packages", []):
        name, version = canonicalize_name(package["name"]), package.get("version", "")
        offers = {}
        for entry in [*package.get("wheels", []), *([package["archive"]] if "archive" in package else [])]:
            location = _location(entry)
            filename = unquote(urlsplit(location).path).rpartition("/")[2]
            sha256 = entry.get("hashes", {}).get("sha256", "")
            if not allowed or sha256 in allowed:
                offers[filename] = Link(name, version, filename, location, sha256)
        chosen = best(offers, python)
        if chosen is None:
            what = "with one of the given hashes " if allowed else ""
            target = f"Python {python[0]}.{python[1]} on this kind of machine"
            raise SourceError(f"{name} {version}: the index has no wheel {what}for {target}")
        links.append(offers[chosen])
    return links


def _location(entry: dict[str, str]) -> str:
    url = entry.get("url", "")
    if url.startswith("file:"):
        return unquote(urlsplit(url).path)
    return url or str(Path(entry["path"]).resolve())
