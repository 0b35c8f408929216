"""One wheel: what it would install, and its shared objects, from a file, a server, or a folder it was unpacked into."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from abi_checks.bytesource import BufferSource, ByteSource, FileSource
from abi_checks.elf_format import ELF_MAGIC
from abi_checks.errors import SourceError, UsageError
from abi_checks.sources.archive import ArchiveBytes, LocalBytes, Member, Refusal, read_directory
from abi_checks.sources.folder import metadata_fields
from abi_checks.sources.members import MemberError, Store, member_head, open_member, read_member
from abi_checks.versions import same_version

MAX_METADATA_BYTES = 8 << 20
_SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel, as its directory and its metadata describe it."""

    filename: str
    location: str
    """A path, the path of a folder with the wheel's unpacked content, or a URL."""
    name: str
    """Normalised (PEP 503), of METADATA, or of the file's name where METADATA can't be read."""
    version: str
    requires: tuple[str, ...]
    tags: tuple[str, ...]
    info_folder: str
    files: Mapping[str, Member | None] = field(repr=False)
    """Path in the wheel → where it lies in the archive (None for an unpacked wheel)."""
    refused: tuple[Refusal, ...]
    fetched: int
    """Bytes that were transferred to learn this."""

    def install_path(self, path: str, python: tuple[int, int]) -> str:
        """Where an installer puts a file of the wheel, relative to the environment.

        (Binary distribution format, "The .data directory".)
        """
        site_packages = f"lib/python{python[0]}.{python[1]}/site-packages"
        top, _, rest = path.partition("/")
        scheme, _, below = rest.partition("/")
        if not top.endswith(".data") or scheme not in _SCHEMES:
            return f"{site_packages}/{path}"
        if scheme == "scripts":
            return f"bin/{below}"
        if scheme == "headers":
            return f"include/site/python{python[0]}.{python[1]}/{self.name}/{below}"
        return below if scheme == "data" else f"{site_packages}/{below}"


@contextmanager
def open_bytes(location: str) -> Iterator[ArchiveBytes]:
    """The bytes of a wheel behind a path or a URL; raises SourceError where it can't be read."""
    if location.startswith(("http://", "https://")):
        from abi_checks.remote import RemoteFile  # brings an HTTP client with it, which takes 70 ms to import

        yield RemoteFile(location)
        return
    try:
        source = FileSource(location)
    except OSError as error:
        raise SourceError(f"{location}: cannot read this wheel: {error.strerror}") from error
    with source:
        yield LocalBytes(source)


def read_wheel(location: str, filename: str) -> Wheel:
    """Read a wheel's directory and metadata.

    Raises UsageError where ``filename`` is no wheel's name, and SourceError where the wheel can't be read as a whole.
    """
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{filename}: not the name of a wheel (NAME-VERSION-PYTHON-ABI-PLATFORM.whl): {error}"
        ) from error
    contents = _unpacked(location, name) if os.path.isdir(location) else _packed(location, filename, name)
    fields = metadata_fields(contents.metadata.replace("\r\n", "\n"))
    told = (
        canonicalize_name(next(iter(fields.get("Name", ())), name)),
        next(iter(fields.get("Version", ())), str(version)),
    )
    refused = list(contents.refused)
    if told[0] != name or not same_version(told[1], str(version)):
        why = f"it names {told[0]} {told[1]}, and the file's name {name} {version}: an installer refuses such a wheel"
        refused.append(Refusal(f"{contents.info_folder}/METADATA", why))
    return Wheel(
        filename=filename,
        location=location,
        name=told[0],
        version=told[1],
        requires=tuple(fields.get("Requires-Dist", ())),
        tags=tuple(line[4:].strip() for line in contents.tags.splitlines() if line.startswith("Tag:")),
        info_folder=contents.info_folder,
        files=contents.files,
        refused=tuple(refused),
        fetched=contents.fetched,
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """A wheel's members and the texts of its METADATA and WHEEL files ("" where they can't be read)."""

    files: Mapping[str, Member | None]
    info_folder: str
    metadata: str
    tags: str
    refused: tuple[Refusal, ...]
    fetched: int


def _unpacked(folder: str, name: str) -> _Contents:
    files = dict.fromkeys(_walk(folder))
    info = _info_folder(files, name)
    try:
        metadata, tags = (Path(folder, info, part).read_text("utf-8", "replace") for part in ("METADATA", "WHEEL"))
    except OSError as error:
        raise SourceError(f"{folder}: not the content of a wheel: {info}: {error.strerror}") from error
    return _Contents(files, info, metadata, tags, (), 0)


def _packed(location: str, filename: str, name: str) -> _Contents:
    with open_bytes(location) as source:
        directory = read_directory(source, filename)
        files = {member.name: member for member in directory.members}
        info = _info_folder(files, name)
        refused = list(directory.refused)
        texts = {"METADATA": "", "WHEEL": ""}
        for part in texts:
            member = files.get(f"{info}/{part}")
            try:
                if member is None:
                    raise MemberError("a wheel must have it, and it is missing")
                texts[part] = read_member(source, member, MAX_METADATA_BYTES).decode("utf-8", "replace")
            except MemberError as error:
                refused.append(Refusal(f"{info}/{part}", str(error)))
        return _Contents(files, info, texts["METADATA"], texts["WHEEL"], tuple(refused), source.fetched)


def _info_folder(files: Iterable[str], name: str) -> str:
    """The .dist-info folder of the distribution ``name``; a name of our own where there is none."""
    for path in files:
        top, _, rest = path.partition("/")
        if rest == "METADATA" and top.endswith(".dist-info") and canonicalize_name(top.partition("-")[0]) == name:
            return top
    return f"{name}.dist-info"


def _walk(folder: str) -> Iterator[str]:
    for top, _, names in os.walk(folder):
        relative = os.path.relpath(top, folder)
        for name in names:
            yield name if relative == "." else f"{relative}/{name}"


def open_object(source: ArchiveBytes, member: Member, store: Store) -> ByteSource:
    """The bytes of one object, of a file without the ELF magic number only the first; see :func:`open_member`."""
    head = member_head(source, member, 64)
    return open_member(source, member, store) if head.startswith(ELF_MAGIC) else BufferSource(head)
