"""The software bill of materials of a build, in CycloneDX's JSON form."""

from __future__ import annotations

import email.parser
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.message import Message
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from abi_checks.errors import SourceError
from stack import __version__
from stack.installed import InstalledDistribution, installed_distributions, site_packages
from stack.lockfile import LockedDistribution, read_lock
from stack.manifest import read_manifest
from stack.patching.series import load_all
from stack.prefix import Build

LONGEST_LICENSE_NAME = 80
"""Characters; a longer ``License`` field holds the licence's text, which the distribution carries anyway."""

NAMESPACE = uuid.UUID("5f2f6a0a-3c0e-5a7e-9d55-2f0c1d1c7a10")
"""For serial numbers: a build gets the same one each time (RFC 9562, version 5)."""


def sbom_text(build: Build, artifacts: Mapping[str, str]) -> str:
    """The bill of materials of a complete build; the same build gives the same text.

    ``artifacts``: distribution → sha256 of the very wheel that was installed, where that is known. Of the others whose
    lock allows one file alone that file's hash is given; all allowed hashes are in the property ``locked-sha256``.

    :raises SourceError: the build's manifest, lock or metadata cannot be read
    """
    manifest = read_manifest(build.manifest)
    lock = {item.name: item for item in read_lock(build.lock).distributions}
    packages = site_packages(build.environment)
    distributions = installed_distributions(packages)
    metadata = {item.name: _metadata(item.folder / "METADATA") for item in distributions}
    components = {
        item.name: _component(item, metadata[item.name], lock.get(item.name), artifacts.get(item.name), manifest)
        for item in distributions
    }
    stack = Component(
        name=str(manifest["stack"]),
        version=str(manifest["lock"]["sha256"])[:12],
        type=ComponentType.APPLICATION,
        description=str(manifest["summary"]),
        bom_ref="stack",
        properties=[
            Property(name="cu130-stack:lock:sha256", value=str(manifest["lock"]["sha256"])),
            Property(name="cu130-stack:python", value=str(manifest["python"]["release"])),
            Property(name="cu130-stack:rebuild", value=str(manifest.get("rebuild", ""))),
        ],
    )
    bom = Bom(components=components.values(), serial_number=uuid.uuid5(NAMESPACE, build.manifest.read_text("utf-8")))
    bom.metadata.timestamp = datetime.fromisoformat(str(manifest["built"]))
    bom.metadata.component = stack
    bom.metadata.tools.components.add(
        Component(name="cu130-stack", version=__version__, type=ComponentType.APPLICATION, bom_ref="cu130-stack")
    )
    bom.register_dependency(stack, components.values())
    for name, component in components.items():
        bom.register_dependency(component, [components[d] for d in _required(metadata[name]) if d in components])
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _component(
    item: InstalledDistribution,
    metadata: Message,
    locked: LockedDistribution | None,
    artifact: str | None,
    manifest: Mapping[str, Any],
) -> Component:
    hashes = locked.hashes if locked else ()
    exact = artifact or (hashes[0] if len(hashes) == 1 else None)
    qualifiers = {"download_url": locked.url} if locked and locked.url else None
    purl = PackageURL("pypi", None, item.name, item.version, qualifiers)
    license = license_name(metadata)
    record = hashlib.sha256((item.folder / "RECORD").read_bytes()).hexdigest()
    return Component(
        name=item.name,
        version=item.version,
        bom_ref=f"{item.name}=={item.version}",
        purl=purl,
        description=_line(metadata.get("Summary")),
        licenses=[LicenseFactory().make_from_string(license)] if license else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=exact)] if exact else None,
        properties=[
            Property(name="cu130-stack:record:sha256", value=record),
            *(Property(name="cu130-stack:locked-sha256", value=value) for value in hashes),
        ],
        pedigree=_pedigree(item.name, manifest),
    )


def license_name(metadata: Message) -> str:
    """The licence by its expression, else as the classifiers or a short ``License`` field name it; "" if none does."""
    if expression := _line(metadata.get("License-Expression")):
        return expression
    classified = [
        value.rpartition(" :: ")[2]
        for value in metadata.get_all("Classifier", ())
        if value.startswith("License :: ") and value != "License :: OSI Approved"
    ]
    stated = str(metadata.get("License") or "").strip()
    if stated and stated != "UNKNOWN" and len(stated) <= LONGEST_LICENSE_NAME and "\n" not in stated:
        return stated
    return " and ".join(classified)


def _pedigree(name: str, manifest: Mapping[str, Any]) -> Pedigree | None:
    """The patches that this build carries in a distribution, with their text and what they change."""
    rows = [row for row in manifest.get("patches", ()) if row["distribution"] == name]
    if not rows:
        return None
    texts = {
        (series.distribution, series.version, patch.name): patch.diff
        for series in load_all()
        for patch in series.patches
    }
    notes = []
    patches = []
    for row in rows:
        text = texts.get((name, row["version"], row["name"]), "")
        notes += [f"{row['name']}: {f['path']} sha256 {f['before']} -> {f['after']}" for f in row["files"]]
        patches.append(
            Patch(
                type=PatchClassification.UNOFFICIAL,
                diff=Diff(text=AttachedText(content=text, content_type="text/x-diff")) if text else None,
            )
        )
    return Pedigree(patches=patches, notes="\n".join(notes))


def _metadata(path: Path) -> Message:
    try:
        return email.parser.Parser().parsestr(path.read_text(encoding="utf-8", errors="replace"), headersonly=True)
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read: {error.strerror}. Verify the build with `cu130-stack verify`"
        ) from error


def _line(value: object) -> str:
    return " ".join(str(value or "").split())


def _required(metadata: Message) -> Iterable[str]:
    """The distributions that one requires, those behind an extra or another platform's marker left out."""
    for text in metadata.get_all("Requires-Dist", ()):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)
