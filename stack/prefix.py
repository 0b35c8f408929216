"""Where stacks live on disk, which one is in use, and who may change that.

``PREFIX/<stack>/builds/<build>/`` holds one build: ``env/`` (the virtual environment), ``lock.txt``, ``waivers.toml``,
``report.json`` and ``manifest.json``. The manifest is written last; a build without one is incomplete. ``current``
and ``previous`` beside ``builds`` are relative links to builds, switched by rename.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from abi_checks.errors import SourceError, UserError
from stack.files import point_link


def default_prefix() -> Path:
    """$CU130_STACK_PREFIX, else cu130-stack in the user's data folder ($XDG_DATA_HOME, else ~/.local/share)."""
    if chosen := os.environ.get("CU130_STACK_PREFIX"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share").absolute() / "cu130-stack"


def environments_in_use() -> list[str]:
    """The environments of the default prefix's stacks in use, by name of the stack."""
    links = sorted(default_prefix().glob("*/current/env"))
    if not links:
        raise SourceError(f"{default_prefix()}: no stack is in use there. Build one, or name an environment")
    return [str(link) for link in links]


@dataclass(frozen=True, slots=True)
class Build:
    """One build's folder."""

    folder: Path

    @property
    def environment(self) -> Path:
        """The virtual environment."""
        return self.folder / "env"

    @property
    def manifest(self) -> Path:
        """What was built from what; there only when the build is complete."""
        return self.folder / "manifest.json"

    @property
    def lock(self) -> Path:
        """A copy of the lock."""
        return self.folder / "lock.txt"

    @property
    def waivers(self) -> Path:
        """The waivers the stack was judged with; abi-check finds them beside the environment."""
        return self.folder / "waivers.toml"

    @property
    def report(self) -> Path:
        """abi-check's JSON report."""
        return self.folder / "report.json"

    @property
    def installed(self) -> Path:
        """In an incomplete build, says of which lock (sha256) everything was installed, so that the next goes on."""
        return self.folder / "installed"

    def installed_from(self, lock: str) -> bool:
        """Whether everything of the lock with this sha256 was installed, and what follows was not completed."""
        try:
            return self.installed.read_text(encoding="utf-8").strip() == lock
        except (OSError, UnicodeDecodeError):
            return False

    @property
    def complete(self) -> bool:
        """Whether every step of the build was done."""
        return self.manifest.is_file()


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The folder of one stack in a prefix."""

    path: Path

    def build(self, name: str) -> Build:
        """The build of that name, made or not."""
        return Build(self.path / "builds" / name)

    @property
    def current(self) -> Build | None:
        """The build in use, or None."""
        return self._linked("current")

    @property
    def previous(self) -> Build | None:
        """The build that was in use before, or None."""
        return self._linked("previous")

    def _linked(self, name: str) -> Build | None:
        link = self.path / name
        return Build(self.path / link.readlink()) if link.is_symlink() and (link / "manifest.json").is_file() else None

    def switch(self, build: Build) -> bool:
        """Make a complete build the current one; False if it already was.

        ``previous`` is set first: a kill between the two leaves ``current`` as it was.

        :raises UserError: the links cannot be written, on a full disk for instance; ``current`` is as it was
        """
        current = self.current
        if current == build:
            return False
        try:
            if current:
                point_link(self.path / "previous", f"builds/{current.folder.name}")
            point_link(self.path / "current", f"builds/{build.folder.name}")
        except OSError as error:
            raise UserError(
                f"{self.path}: could not switch to {build.folder.name}: {error.strerror}. The stack in use is as it was"
            ) from error
        return True

    @contextmanager
    def exclusive(self, say: Callable[[str], None], *, wait: bool = True) -> Iterator[int]:
        """Hold the stack's lock; yields its descriptor, which children that write may keep open.

        If somebody else holds it, says who, since when, and waits.

        :raises UserError: somebody else holds it, where ``wait`` is false
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SourceError(
                f"{self.path}: cannot be written: {error.strerror}. Choose another folder with --prefix"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                if not wait:
                    raise UserError(
                        f"{self.path}: is being changed by {holder or 'another process'}. Nothing was done; try again "
                        "when that has ended"
                    ) from None
                say(f"waiting: {self.path.name} is being built by {holder or 'another process'}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            since = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} since {since}\n".encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)
