"""The record of a build: what was built from which lock, on which host, with which findings."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError
from abi_checks.expectations import Expectations
from abi_checks.findings import Finding
from stack import __version__
from stack.availability import Availability
from stack.definition import DEFINITIONS, StackDefinition
from stack.patching import AppliedPatch, manifest_rows
from stack.preflight import host_glibc
from stack.revision import revision

SCHEMA_VERSION = 1


def definition_digest(path: Path) -> str:
    """The sha256 of a definition file: a build judged under another state of it is judged again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest_text(
    availability: Availability,
    passed_over: Mapping[str, Mapping[str, str]],
    metadata_differences: tuple[str, ...],
    judged_before: bool,
    findings: tuple[Finding, ...],
    patches: tuple[AppliedPatch, ...],
) -> str:
    """The manifest as JSON. ``passed_over``: preferred stack that was not built → wheel → why it could not be had.

    ``judged_before`` tells whether the wheels were judged before they were installed.
    """
    definition, lock = availability.definition, availability.lock
    document = {
        "schema_version": SCHEMA_VERSION,
        "stack": definition.name,
        "summary": definition.summary,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "cu130_stack": __version__,
        "revision": revision(),
        "rebuild": f"cu130-stack build --stack {_stack_argument(definition)} --python {lock.python}",
        "definition_sha256": definition_digest(definition.path),
        "lock": {"file": definition.lock_path(lock.python).name, "sha256": lock.sha256},
        "passed_over": passed_over,
        "python": {"release": availability.interpreter.release, "executable": str(availability.interpreter.path)},
        "host": {
            "system": platform.platform(),
            "distribution": _distribution(),
            "machine": platform.machine(),
            "glibc": host_glibc(),
            "cpus": os.cpu_count(),
        },
        "sources": {
            "indexed": availability.index,
            "direct": {
                source.distribution.filename: {"origin": source.origin, "sha256": source.distribution.hashes[0]}
                for source in availability.direct
            },
        },
        "distributions": lock.versions,
        "overlaps": [[overlap.winner, overlap.over] for overlap in definition.overlaps],
        "metadata_differences": metadata_differences,
        "judged_before_installation": judged_before,
        "patches": manifest_rows(patches),
        "findings": [
            {
                "check": finding.check,
                "severity": finding.effective_severity,
                "object": finding.object,
                "distribution": finding.distribution,
                "message": finding.message,
                "waived": finding.waived,
            }
            for finding in findings
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest's content.

    :raises SourceError: it cannot be read
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot read the manifest: {error}. Remove its folder and build again") from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise SourceError(
            f"{path}: is not a manifest of schema version {SCHEMA_VERSION}. Remove its folder and build again"
        )
    return document


def expectations_text(expectations: Expectations) -> str:
    """A file for abi-check, as TOML: the target GPUs, the expected versions and the waivers."""
    versions = [f"{name} = {json.dumps(version)}" for name, version in expectations.versions.items()]
    rows = [f"target_sm = {json.dumps(expectations.target_sms)}\n", "\n".join(["[expected]", *versions]) + "\n"]
    for waiver in expectations.waivers:
        fields = ("check", "object", "distribution", "reason")
        # A JSON string is a TOML basic string.
        rows.append(
            "\n".join(["[[waivers]]", *(f"{field} = {json.dumps(getattr(waiver, field))}" for field in fields)]) + "\n"
        )
    return "\n".join(rows)


def _stack_argument(definition: StackDefinition) -> str:
    return definition.name if definition.path.parent == DEFINITIONS else str(definition.path)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""
