"""The builds that lie in a prefix: what each is, going back to one, and removing those nobody needs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from abi_checks.api import check_environment
from abi_checks.errors import SourceError, UsageError, UserError
from abi_checks.expectations import read_expectations
from abi_checks.findings import Severity
from abi_checks.report.interface import Report
from stack.installed import Comparison, compare
from stack.lockfile import read_lock
from stack.manifest import read_manifest
from stack.messages import listed
from stack.prefix import Build, StackFolder
from stack.processes import users_of

SHOWN = 10
"""How many problems of a damaged build a message lists."""


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes on disk of a build; ``own`` of them nothing else holds a hard link to, so that removing it frees them."""

    total: int
    own: int


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """One build as its manifest has it. ``built`` is in UTC, "" for an incomplete build, as is ``lock`` (sha256).

    ``findings``: severity → how many, after waivers; ``users``: the processes that use the build.
    """

    build: Build
    built: str
    lock: str
    findings: tuple[tuple[str, int], ...]
    size: Size
    role: str
    """``current``, ``previous`` or ""."""

    users: tuple[int, ...]

    @property
    def state(self) -> str:
        """In words: what keeps the build, or why nothing does."""
        words = [self.role] if self.role else []
        if not self.built:
            words.append("incomplete")
        if self.users:
            words.append("used by process " + ", ".join(map(str, self.users)))
        return ", ".join(words) or "kept by nothing"


def stack_folders(prefix: Path) -> tuple[StackFolder, ...]:
    """The folders of the stacks that a prefix holds builds of, by name.

    :raises SourceError: the prefix cannot be read
    """
    try:
        names = sorted(entry.name for entry in os.scandir(prefix) if os.path.isdir(os.path.join(entry.path, "builds")))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SourceError(f"{prefix}: cannot be read: {error.strerror}. Choose another folder with --prefix") from error
    return tuple(StackFolder(prefix / name) for name in names)


def only_stack(prefix: Path, name: str | None) -> StackFolder:
    """The folder of the named stack, or of the only one there is.

    :raises SourceError: no such stack is there
    :raises UsageError: there are several, and none is named
    """
    found = stack_folders(prefix)
    if name:
        found = tuple(folder for folder in found if folder.path.name == name)
    if not found:
        what = f"no build of {name}" if name else "no build of any stack"
        raise SourceError(f"{prefix}: {what} is there. Build one with `cu130-stack build`, or name the place: --prefix")
    if len(found) > 1:
        names = ", ".join(folder.path.name for folder in found)
        raise UsageError(f"{prefix}: holds several stacks ({names}); choose one with --stack")
    return found[0]


def records(folder: StackFolder) -> tuple[BuildRecord, ...]:
    """Every build of a stack, the newest first, incomplete ones last."""
    roles = {build.folder.name: role for role, build in _linked(folder) if build}
    found = [_record(Build(path), roles.get(path.name, "")) for path in sorted((folder.path / "builds").iterdir())]
    return tuple(sorted(found, key=lambda item: item.built, reverse=True))


def _linked(folder: StackFolder) -> tuple[tuple[str, Build | None], ...]:
    # The current build comes last, so that its role wins where a kill left both links on one build.
    return (("previous", folder.previous), ("current", folder.current))


def _record(build: Build, role: str) -> BuildRecord:
    manifest = read_manifest(build.manifest) if build.complete else {}
    counts = Counter(str(finding["severity"]) for finding in manifest.get("findings", ()))
    return BuildRecord(
        build=build,
        built=str(manifest.get("built", "")),
        lock=str(manifest.get("lock", {}).get("sha256", "")),
        findings=tuple((severity.value, counts[severity.value]) for severity in Severity if counts[severity.value]),
        size=folder_size(build.folder),
        role=role,
        users=users_of(build.folder).processes,
    )


def folder_size(folder: Path) -> Size:
    """What a folder takes on disk. A file with several names is counted once."""
    total = own = 0
    seen: dict[tuple[int, int], list[int]] = {}
    for path, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(path, name))
            names = seen.setdefault((status.st_dev, status.st_ino), [0, status.st_nlink, status.st_blocks * 512])
            names[0] += 1
    for here, links, size in seen.values():
        total += size
        own += size if here == links else 0
    return Size(total, own)


def roll_back(folder: StackFolder, to: str | None, *, deep: bool = False) -> Build:
    """Check a build that lies there as a new build is checked, and put it in use by one rename.

    ``to`` is a build's name or the start of one; without it, the previous build. ``deep`` hashes every file. The build
    that was in use becomes the previous one.

    :raises UsageError: there is no such build
    :raises UserError: the build is incomplete or damaged, or somebody else is changing this stack
    """
    with folder.exclusive(print, wait=False):
        build = _wanted(folder, to)
        if not build.complete:
            raise UserError(
                f"{build.folder}: this build was never completed (it has no manifest.json), so it is not put in use. "
                f"{_others(folder)}"
            )
        problems = build_problems(build, deep=deep)
        if problems:
            raise UserError(
                listed(f"{build.folder}: damaged, so it is not put in use:", problems, SHOWN)
                + f"\nThe stack in use is as it was. {_others(folder)}"
            )
        folder.switch(build)
    return build


def build_problems(build: Build, *, deep: bool = False) -> list[str]:
    """What is wrong with a complete build on this host: against its lock, its RECORD files, and the ABI check."""
    return list(compare_build(build, deep=deep).problems) or [
        f"{finding.object or finding.distribution}: {finding.message}"
        for finding in judge(build).findings
        if finding.effective_severity is Severity.ERROR
    ]


def compare_build(build: Build, *, deep: bool = False) -> Comparison:
    """Compare a complete build with its own lock; see :func:`stack.installed.compare`.

    :raises SourceError: its record cannot be read
    """
    overlaps = [(winner, over) for winner, over in read_manifest(build.manifest)["overlaps"]]
    return compare(build.environment, read_lock(build.lock).versions, overlaps, deep=deep)


def judge(build: Build) -> Report:
    """The ABI check of a build, held to the expectations it was built with.

    :raises SourceError: they cannot be read
    """
    return check_environment(build.environment, read_expectations(build.waivers))


def _wanted(folder: StackFolder, to: str | None) -> Build:
    if to is None:
        previous = folder.previous
        if previous is None or previous == folder.current:
            raise UsageError(f"{folder.path}: no build was in use before the current one. {_others(folder)}")
        return previous
    names = [path.name for path in (folder.path / "builds").iterdir() if path.name.startswith(to)]
    if to in names:
        names = [to]
    if len(names) != 1:
        what = f"{len(names)} builds start with {to!r}" if names else f"there is no build {to!r}"
        raise UsageError(f"{folder.path}: {what}. {_others(folder)}")
    return folder.build(names[0])


def _others(folder: StackFolder) -> str:
    complete = sorted(path.name for path in (folder.path / "builds").iterdir() if Build(path).complete)
    return f"Complete builds: {', '.join(complete) or 'none'}"


@dataclass(frozen=True, slots=True)
class Removal:
    """A build that was removed, and how many bytes of disk that freed."""

    name: str
    freed: int


def collect_garbage(folder: StackFolder, say: Callable[[str], None]) -> tuple[Removal, ...]:
    """Remove the builds that are neither current nor previous nor used by a running process.

    :raises UserError: somebody is changing this stack; then nothing is removed
    """
    removed = []
    with folder.exclusive(say, wait=False):
        kept = {build.folder.name for _, build in _linked(folder) if build}
        for path in sorted((folder.path / "builds").iterdir()):
            if path.name in kept:
                continue
            # Asked for each anew: a process may have started while the one before was removed.
            users = users_of(path)
            if users.processes:
                say(f"{path.name}: kept, process {', '.join(map(str, users.processes))} uses it")
                continue
            if users.hidden:
                say(f"{path.name}: {users.hidden} processes of other users could not be looked at")
            own = folder_size(path).own
            # Without its manifest a build is incomplete, so a removal that is interrupted leaves nothing to fall for.
            Build(path).manifest.unlink(missing_ok=True)
            shutil.rmtree(path)
            removed.append(Removal(path.name, own))
    return tuple(removed)
