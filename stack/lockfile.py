"""A lock file: which exact distributions a stack consists of, each with the hashes of its files.

The text is what pip and uv accept as hashed requirements, in one normal form: a header, then one entry a
distribution, sorted by name, its hashes sorted. No index is named; only a wheel that no index carries has a URL.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from abi_checks.errors import SourceError, UsageError


@dataclass(frozen=True, slots=True)
class LockedDistribution:
    """One entry; ``url`` is "" for a distribution that an index carries. Hashes are sha256 in hex, sorted."""

    name: str
    version: str
    url: str
    hashes: tuple[str, ...]

    @property
    def filename(self) -> str:
        """The file name of a wheel that has a URL."""
        return unquote(self.url.rpartition("/")[2])

    def entry(self, address: str | None = None) -> str:
        """The entry as requirements text; ``address`` replaces the URL."""
        address = self.url if address is None else address
        requirement = f"{self.name} @ {address}" if address else f"{self.name}=={self.version}"
        return " \\\n    ".join([requirement, *(f"--hash=sha256:{value}" for value in self.hashes)]) + "\n"


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's content. ``inputs`` is the digest of what it was made from (see stack.lock)."""

    stack: str
    python: str
    inputs: str
    distributions: tuple[LockedDistribution, ...]

    @property
    def text(self) -> str:
        """The file's text."""
        header = (
            f"# stack {self.stack}, Python {self.python}, inputs {self.inputs}\n"
            "# Made by `cu130-stack lock` from the stack's definition; change that and make it again.\n"
        )
        return header + "".join(item.entry() for item in self.distributions)

    @property
    def sha256(self) -> str:
        """The digest of the file's text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def build_name(self) -> str:
        """The name of the folder that a build of this lock gets."""
        return f"py{self.python.replace('.', '')}-{self.sha256[:12]}"

    @property
    def versions(self) -> dict[str, str]:
        """Distribution name → version."""
        return {item.name: item.version for item in self.distributions}

    @property
    def indexed(self) -> tuple[LockedDistribution, ...]:
        """The distributions that an index carries."""
        return tuple(item for item in self.distributions if not item.url)

    @property
    def direct(self) -> tuple[LockedDistribution, ...]:
        """The distributions that have a URL."""
        return tuple(item for item in self.distributions if item.url)


def parse_distributions(text: str, source: str) -> tuple[LockedDistribution, ...]:
    """The entries of hashed requirements text; ``source`` names it in errors.

    :raises UsageError: an entry that is neither ``name==version`` nor ``name @ URL``, has no hash, or appears twice
    """
    found: dict[str, LockedDistribution] = {}
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        line = entry.strip()
        if not line or line.startswith("#"):
            continue
        requirement, *options = re.split(r"\s+(?=--)", line)
        hashes = {
            match[1] for option in options if (match := re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", option.strip()))
        }
        if len(hashes) != len(options) or not hashes:
            raise UsageError(
                f"{source}: {requirement!r} must have sha256 hashes and no other option; make the lock again"
            )
        item = _distribution(requirement, tuple(sorted(hashes)), source)
        if item.name in found:
            raise UsageError(f"{source}: {item.name} appears twice; make the lock again")
        found[item.name] = item
    return tuple(found[name] for name in sorted(found))


def _distribution(requirement: str, hashes: tuple[str, ...], source: str) -> LockedDistribution:
    if match := re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;@]+)", requirement):
        return LockedDistribution(canonicalize_name(match[1]), match[2], "", hashes)
    if match := re.fullmatch(r"([A-Za-z0-9._-]+) @ (https://[^\s#;]+)(#\S*)?", requirement):
        try:
            name, version, _, _ = parse_wheel_filename(unquote(match[2].rpartition("/")[2]))
        except InvalidWheelFilename as error:
            raise UsageError(f"{source}: {error}") from error
        return LockedDistribution(name, str(version), match[2], hashes)
    raise UsageError(
        f"{source}: {requirement!r} is neither 'name==version' nor 'name @ https://…/file.whl'; make the lock again"
    )


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    :raises SourceError: it cannot be read
    :raises UsageError: it is not one of this project's lock files
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such lock; make it with `cu130-stack lock`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the lock: {error}") from error
    match = re.match(r"# stack (\S+), Python (3\.\d+), inputs ([0-9a-f]{64})\n", text)
    if not match:
        raise UsageError(
            f"{path}: not a lock of this project (its first line is not '# stack …'); make it with `cu130-stack lock`"
        )
    lock = Lock(match[1], match[2], match[3], parse_distributions(text, str(path)))
    if lock.text != text:
        raise UsageError(f"{path}: was edited by hand, or is not in normal form; make it again with `cu130-stack lock`")
    return lock
