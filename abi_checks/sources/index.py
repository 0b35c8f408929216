"""From a requirement to the file an installer would download, as uv resolves it with the user's own settings.

uv reads the indexes, credentials and mirrors that its settings and environment name, so nothing of that is known here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from uv import find_uv_bin

from abi_checks.errors import SourceError
from abi_checks.sources.selection import PythonVersion, best

UV_TIMEOUT = 180.0
"""Seconds after which a uv that doesn't answer is ended."""


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
    document = tomllib.loads(run_uv(arguments, "\n".join(requirements)))
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


def uv_cache() -> Path:
    """The folder in which uv keeps what it has downloaded."""
    return Path(run_uv(["cache", "dir"], "").strip())


def run_uv(arguments: Sequence[str], stdin: str) -> str:
    """What uv prints; raises SourceError when it fails, is missing, or doesn't end within UV_TIMEOUT."""
    try:
        command = [find_uv_bin(), *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,
        )
    except OSError as error:  # UvNotFound is a FileNotFoundError
        raise SourceError(f"uv can't be run: {error}; it is a dependency of this package: install it again") from error
    try:
        output, problem = process.communicate(stdin, timeout=UV_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise SourceError(f"uv {arguments[0]}: no answer within {UV_TIMEOUT:.0f} s; is the index reachable?") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise SourceError(f"uv could not resolve {', '.join(stdin.split(chr(10)))[:200]}:\n{problem.strip()}")
    return output
