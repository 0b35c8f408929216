"""What a definition states about wheels it cannot fetch, compared with the wheels once they are installed."""

from __future__ import annotations

import email.parser
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from abi_checks.errors import SourceError
from stack.definition import DirectWheel, StackDefinition
from stack.lockfile import Lock


@dataclass(frozen=True, slots=True)
class MetadataComparison:
    """``differences`` between statement and wheel; ``unmet`` is what the wheel requires and the lock lacks."""

    differences: tuple[str, ...]
    unmet: tuple[str, ...]


def compare_metadata(definition: StackDefinition, lock: Lock, packages: Path) -> MetadataComparison:
    """Compare each direct wheel's METADATA in ``packages`` with the definition.

    A requirement that an override sets aside counts as met.

    :raises SourceError: a METADATA file that cannot be read
    """
    differences: list[str] = []
    unmet: list[str] = []
    overridden = {pin.name for pin in definition.overrides}
    for wheel in definition.wheels:
        path = packages / f"{wheel.name.replace('-', '_')}-{wheel.version}.dist-info" / "METADATA"
        try:
            metadata = email.parser.Parser().parsestr(path.read_text(encoding="utf-8"), headersonly=True)
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{path}: cannot read the metadata of {wheel.name}: {error}") from error
        required = tuple(metadata.get_all("Requires-Dist", ()))
        differences += (f"{wheel.name} {wheel.version}: {text}" for text in _differences(wheel, metadata, required))
        unmet += (f"{wheel.name} {wheel.version} requires {text}" for text in _unmet(required, lock, overridden))
    return MetadataComparison(tuple(differences), tuple(unmet))


def _differences(wheel: DirectWheel, metadata: Message, required: Iterable[str]) -> list[str]:
    found = []
    for label, real, stated in (
        ("version", str(metadata.get("Version")), wheel.version),
        (
            "Requires-Python",
            str(SpecifierSet(metadata.get("Requires-Python", ""))),
            str(SpecifierSet(wheel.requires_python)),
        ),
    ):
        if real != stated:
            found.append(f"{label} is {real or 'not given'}, stated as {stated or 'not given'}")
    really, stated_set = {_normal(text) for text in required}, {_normal(text) for text in wheel.requires_dist}
    found += [f"requires {text}, which is not stated" for text in sorted(really - stated_set)]
    found += [f"does not require {text}, which is stated" for text in sorted(stated_set - really)]
    return found


def _unmet(required: Iterable[str], lock: Lock, overridden: set[str]) -> list[str]:
    versions = lock.versions
    found = []
    for text in required:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            found.append(f"{text!r}, which is not a valid requirement")
            continue
        name = canonicalize_name(requirement.name)
        environment = {"python_version": lock.python, "python_full_version": f"{lock.python}.0", "extra": ""}
        if name in overridden or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        if name not in versions:
            found.append(f"{text}, which is not in the lock")
        elif not requirement.specifier.contains(versions[name], prereleases=True):
            found.append(f"{text}, and the lock has {versions[name]}")
    return found


def _normal(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return text
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)
