"""What a stack is: its pins, sources, overrides and waivers, each with its reason, read from one TOML file.

The packaged definitions are ``stack/definitions/*.toml`` and their locks lie in ``lockfiles/``; a definition given as
a path has its locks beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from abi_checks.errors import UsageError
from abi_checks.findings import Waiver, parse_waivers
from abi_checks.toml import read_toml
from stack.tables import Table

DEFINITIONS = Path(__file__).resolve().parent / "definitions"
_INSTALLED = DEFINITIONS.parent / "lockfiles"
LOCKFILES = _INSTALLED if _INSTALLED.is_dir() else DEFINITIONS.parent.parent / "lockfiles"
"""Where the locks of the packaged definitions lie: in the package where it is installed, else in the checkout."""

PREFERRED = ("cu130", "cu130-pypi")
"""The stacks a build without ``--stack`` tries, in this order."""

NO_HOST = "https://wheelhouse.invalid/"
"""Stands in a lock for the address of a wheel that only a wheelhouse has (RFC 2606: ``.invalid`` never resolves)."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One exact requirement, ``name==version`` with extras where needed, and why it is there."""

    requirement: str
    reason: str

    @property
    def name(self) -> str:
        """The distribution's normalised name."""
        return canonicalize_name(Requirement(self.requirement).name)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file of a wheel that is on no index; ``url`` is under :data:`NO_HOST` where only a wheelhouse has it."""

    pythons: tuple[str, ...]
    url: str
    sha256: str

    @property
    def filename(self) -> str:
        """The wheel's file name, unquoted."""
        return unquote(self.url.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload known to have been served under a wheel's URL; ``date`` is in UTC."""

    date: str
    commit: str
    tag: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DirectWheel:
    """A distribution that is on no index, with its dependency metadata as stated, not yet as seen in the wheel."""

    name: str
    version: str
    reason: str
    requires_python: str
    requires_dist: tuple[str, ...]
    files: tuple[WheelFile, ...]
    uploads: tuple[Upload, ...]

    def file_for(self, python: str) -> WheelFile:
        """The file for a Python such as ``3.12``; the loader makes sure that there is one."""
        return next(file for file in self.files if python in file.pythons)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two distributions that install the same paths with different content: ``winner`` lies there, not ``over``."""

    winner: str
    over: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """A named set of server options; the value is "" for a flag that takes none."""

    name: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StackDefinition:
    """A stack as its definition file has it.

    ``as_of``: the resolution sees files uploaded up to the end of that day, UTC. ``cuda``: major.minor of the toolkit.
    ``torch``: the build as ``torch.__version__`` gives it. ``glibc``: the oldest that every wheel accepts.
    ``disk_gib``: GiB that the installed stack needs. ``target_sm``: compute capabilities without the dot.
    """

    path: Path
    name: str
    summary: str
    as_of: date
    cuda: str
    torch: str
    machine: str
    glibc: str
    disk_gib: int
    pythons: tuple[str, ...]
    python_unavailable: tuple[tuple[str, str], ...]
    target_sm: tuple[str, ...]
    requirements: tuple[Pin, ...]
    overrides: tuple[Pin, ...]
    wheels: tuple[DirectWheel, ...]
    overlaps: tuple[Overlap, ...]
    waivers: tuple[Waiver, ...]
    profiles: tuple[LaunchProfile, ...]

    @property
    def platform(self) -> str:
        """What the wheels are chosen for, as uv names it: ``x86_64-manylinux_2_28``."""
        return f"{self.machine}-manylinux_{self.glibc.replace('.', '_')}"

    def lock_path(self, python: str) -> Path:
        """Where the lock for a Python such as ``3.12`` lies."""
        folder = LOCKFILES if self.path.parent == DEFINITIONS else self.path.parent
        return folder / f"{self.name}-py{python.replace('.', '')}.txt"

    def check_python(self, python: str) -> None:
        """Refuse a Python for which the stack has no wheels.

        :raises UsageError: with the reason the definition gives, where it gives one
        """
        if python not in self.pythons:
            reason = dict(self.python_unavailable).get(python, "the definition does not list it")
            raise UsageError(
                f"{self.name} cannot be had for Python {python}: {reason}. "
                f"Choose with --python one of: {', '.join(self.pythons)}"
            )


def stack_names() -> tuple[str, ...]:
    """The names of the packaged definitions."""
    return tuple(sorted(path.stem for path in DEFINITIONS.glob("*.toml")))


def load_definition(name: str) -> StackDefinition:
    """Read a packaged definition by name, or any by the path of its ``.toml`` file.

    :raises UsageError: an unknown name, or a file that is not a valid definition
    :raises SourceError: a file that cannot be read
    """
    path = Path(name).resolve() if name.endswith(".toml") else DEFINITIONS / f"{name}.toml"
    if path.parent == DEFINITIONS and path.stem not in stack_names():
        raise UsageError(
            f"no stack named {name!r}; there are {', '.join(stack_names())}, or give the path of a .toml file"
        )
    return _definition(path, Table(read_toml(path, "stack definition"), path.name))


def _definition(path: Path, table: Table) -> StackDefinition:
    pythons = tuple(_matching(table.where, "pythons", item, r"3\.\d+") for item in table.texts("pythons"))
    unavailable = table.table("python_unavailable")
    definition = StackDefinition(
        path=path,
        name=_matching(table.where, "name", table.text("name"), r"[a-z0-9]+(-[a-z0-9]+)*"),
        summary=table.text("summary"),
        as_of=table.day("as_of"),
        cuda=_matching(table.where, "cuda", table.text("cuda"), r"\d+\.\d+"),
        torch=table.text("torch"),
        machine=table.text("machine"),
        glibc=_matching(table.where, "glibc", table.text("glibc"), r"2\.\d+"),
        disk_gib=table.integer("disk_gib"),
        pythons=pythons,
        python_unavailable=tuple((key, unavailable.text(key)) for key in unavailable.names()),
        target_sm=tuple(_matching(table.where, "target_sm", item, r"\d{2,3}a?") for item in table.texts("target_sm")),
        requirements=tuple(_pin(row) for row in table.tables("requirements")),
        overrides=tuple(_pin(row) for row in table.tables("overrides")),
        wheels=tuple(_wheel(row, pythons) for row in table.tables("wheels")),
        overlaps=tuple(_overlap(row) for row in table.tables("overlaps")),
        waivers=parse_waivers(table.raw("waivers", []), table.where),
        profiles=_profiles(table.table("profiles")),
    )
    table.close()
    if definition.name != path.stem:
        raise UsageError(f"{path}: the name is {definition.name!r}, and the file must be named {definition.name}.toml")
    if not pythons or not definition.requirements:
        raise UsageError(f"{table.where}: 'pythons' and [[requirements]] must not be empty")
    return definition


def _matching(where: str, key: str, value: str, pattern: str) -> str:
    if not re.fullmatch(pattern, value):
        raise UsageError(f"{where}: {key!r} is {value!r}, which is not of the form {pattern}")
    return value


def _pin(row: Table) -> Pin:
    pin = Pin(row.text("pin"), row.text("reason"))
    row.close()
    try:
        specifiers = list(Requirement(pin.requirement).specifier)
    except InvalidRequirement as error:
        raise UsageError(f"{row.where}: {pin.requirement!r} is not a requirement: {error}") from error
    if len(specifiers) != 1 or specifiers[0].operator != "==" or specifiers[0].version.endswith("*"):
        raise UsageError(f"{row.where}: a pin must be exact, name==version, not {pin.requirement!r}")
    return pin


def _wheel(row: Table, pythons: tuple[str, ...]) -> DirectWheel:
    wheel = DirectWheel(
        name=canonicalize_name(row.text("name")),
        version=row.text("version"),
        reason=row.text("reason"),
        requires_python=row.text("requires_python", default=""),
        requires_dist=row.texts("requires_dist"),
        files=tuple(_wheel_file(item) for item in row.tables("files")),
        uploads=tuple(_upload(item) for item in row.tables("uploads")),
    )
    row.close()
    for text in wheel.requires_dist:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(f"{row.where}: requires_dist has {text!r}, which is not a requirement: {error}") from error
    for file in wheel.files:
        try:
            name, version, _, _ = parse_wheel_filename(file.filename)
        except InvalidWheelFilename as error:
            raise UsageError(f"{row.where}: {error}") from error
        if (name, str(version)) != (wheel.name, wheel.version):
            raise UsageError(f"{row.where}: {file.filename} is not a wheel of {wheel.name} {wheel.version}")
    for python in pythons:
        if sum(python in file.pythons for file in wheel.files) != 1:
            raise UsageError(f"{row.where}: exactly one of [[wheels.files]] must be for Python {python}")
    return wheel


def _wheel_file(row: Table) -> WheelFile:
    url, name = row.text("url", default=""), row.text("file", default="")
    if bool(url) == bool(name):
        raise UsageError(f"{row.where}: give either 'url', or 'file' for a wheel that only a wheelhouse has")
    if url and (urlsplit(url).scheme != "https" or not url.endswith(".whl") or "#" in url):
        raise UsageError(f"{row.where}: 'url' must be the https address of a .whl file without a fragment, not {url!r}")
    file = WheelFile(row.texts("pythons"), url or NO_HOST + name.replace("+", "%2B"), _sha256(row))
    row.close()
    return file


def _overlap(row: Table) -> Overlap:
    overlap = Overlap(canonicalize_name(row.text("winner")), canonicalize_name(row.text("over")), row.text("reason"))
    row.close()
    return overlap


def _upload(row: Table) -> Upload:
    upload = Upload(row.text("date"), row.text("commit"), row.text("tag"), _sha256(row))
    row.close()
    return upload


def _sha256(row: Table) -> str:
    return _matching(row.where, "sha256", row.text("sha256"), r"[0-9a-f]{64}")


def _profiles(table: Table) -> tuple[LaunchProfile, ...]:
    profiles = []
    for name in table.names():
        row = table.table(name)
        options = []
        for key in row.names():
            value = row.raw(key, None)
            if value is False or not isinstance(value, str | int | float):
                raise UsageError(f"{row.where}: {key!r} must be a text, a number, or true for a flag without a value")
            options.append((f"--{key}", "" if value is True else str(value)))
        profiles.append(LaunchProfile(name, tuple(options)))
    return tuple(profiles)
