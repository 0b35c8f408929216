"""The patch series of this project: what each patch changes, why, and which exact files it was made for.

``stack/patches/<distribution>-<version>/`` holds one ``series.toml`` and one unified diff per patch, ``<name>.patch``.
Patches of one file form a chain in the order of the series: the content before a patch is the content after the one
before it. A file's SHA-256 therefore says by itself which patches of the chain it carries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import whatthepatch

from abi_checks.errors import SourceError, UsageError
from abi_checks.toml import read_toml

PATCHES_FOLDER = Path(__file__).resolve().parent.parent / "patches"

_REQUIRED = {"name", "default", "summary", "why", "upstream", "run", "not_run", "files"}
_OPTIONAL = {"gpus", "models", "together_with"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """One file of a patch: its path relative to site-packages and the SHA-256 (hex) of its content before and after."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch of one distribution; ``diff`` is its unified diff."""

    name: str
    distribution: str
    version: str
    default: bool
    summary: str
    why: str
    upstream: str
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    together_with: tuple[str, ...]
    """Other ``<distribution>-<version>`` whose patch of the same name is applied and reverted with this one."""
    run: tuple[str, ...]
    not_run: tuple[str, ...]
    files: tuple[PatchedFile, ...]
    diff: str

    @property
    def release(self) -> str:
        """``<distribution>-<version>``, as the folders of the series are named."""
        return f"{self.distribution}-{self.version}"


@dataclass(frozen=True, slots=True)
class Series:
    """All patches of one version of one distribution, in the order in which they are applied."""

    distribution: str
    version: str
    patches: tuple[Patch, ...]

    def chain(self, path: str) -> tuple[Patch, ...]:
        """The patches that change ``path``, in order."""
        return tuple(patch for patch in self.patches if any(file.path == path for file in patch.files))


def file_diffs(diff: str) -> dict[str, Any]:
    """The parts of a unified diff by the path of the file they change, as whatthepatch parses them.

    whatthepatch drops a carriage return at the end of a diff's line, so a patch can't have one in its context; such a
    patch does not fit its file and is refused.
    """
    return {part.header.new_path.removeprefix("b/"): part for part in whatthepatch.parse_patch(diff)}


def load_all(folder: Path = PATCHES_FOLDER) -> tuple[Series, ...]:
    """Every series below ``folder``, each checked for consistency; raises UsageError where one is not."""
    return tuple(load_series(child.parent) for child in sorted(folder.glob("*/series.toml")))


def load_series(folder: Path) -> Series:
    """Read ``folder``/series.toml and its diffs."""
    source = folder / "series.toml"
    document = read_toml(source, "patch series")
    if set(document) != {"distribution", "version", "patch"}:
        raise UsageError(f"{source}: must have exactly 'distribution', 'version' and [[patch]] tables")
    distribution, version = document["distribution"], document["version"]
    if folder.name != f"{distribution}-{version}":
        raise UsageError(f"{source}: is for {distribution} {version}, and its folder is named {folder.name}")
    patches = tuple(_patch(row, distribution, version, folder) for row in document["patch"])
    _check_chains(patches, source)
    return Series(distribution, version, patches)


def _patch(row: Mapping[str, Any], distribution: str, version: str, folder: Path) -> Patch:
    source = folder / "series.toml"
    where = f"{source}: patch {row.get('name', '?')}"
    if missing := sorted(_REQUIRED - set(row)):
        raise UsageError(f"{where}: lacks {', '.join(missing)}")
    if unknown := sorted(set(row) - _REQUIRED - _OPTIONAL):
        raise UsageError(f"{where}: unknown keys {', '.join(unknown)}")
    files = tuple(PatchedFile(file["path"], file["before"], file["after"]) for file in row["files"])
    for file in files:
        if not _SHA256.fullmatch(file.before) or not _SHA256.fullmatch(file.after):
            raise UsageError(f"{where}: {file.path}: before and after must be SHA-256 in lower-case hex")
    path = folder / f"{row['name']}.patch"
    try:
        diff = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the diff: {error}") from error
    changed = sorted(file_diffs(diff))
    if changed != sorted(file.path for file in files):
        raise UsageError(f"{path}: changes {', '.join(changed)}, which is not what series.toml lists")
    return Patch(
        name=row["name"],
        distribution=distribution,
        version=version,
        default=row["default"],
        summary=row["summary"],
        why=row["why"].strip(),
        upstream=row["upstream"],
        gpus=tuple(row.get("gpus", ())),
        models=tuple(row.get("models", ())),
        together_with=tuple(row.get("together_with", ())),
        run=tuple(row["run"]),
        not_run=tuple(row["not_run"]),
        files=files,
        diff=diff,
    )


def _check_chains(patches: tuple[Patch, ...], source: Path) -> None:
    latest: dict[str, PatchedFile] = {}
    for patch in patches:
        for file in patch.files:
            earlier = latest.get(file.path)
            if earlier and earlier.after != file.before:
                raise UsageError(
                    f"{source}: patch {patch.name}: {file.path} before it must be what the patch before it leaves"
                )
            latest[file.path] = file
