"""What is expected of a target: the versions meant to be there, the GPUs to be served, and the waivers.

A file of this kind lies beside the environment of a built stack (``SIDECAR``), so that judging the environment later
needs no option; ``--waivers`` names another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from abi_checks.errors import UsageError
from abi_checks.findings import Waiver, parse_waivers
from abi_checks.toml import read_toml

SIDECAR = "waivers.toml"
"""The file's name beside an environment's folder."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """``versions`` maps a (normalised) distribution name to the exact version that is meant to be there;
    ``target_sms`` are the architectures that device code must be there for, such as "120"."""

    waivers: tuple[Waiver, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    target_sms: tuple[str, ...] = ()


def read_expectations(path: Path) -> Expectations:
    """Read a TOML file with ``[[waivers]]``, ``[expected]`` (distribution = "version") and ``target_sm``.

    Raises SourceError where it can't be read, UsageError where it is something else.
    """
    document = read_toml(path, "waivers file")
    versions = document.get("expected", {})
    if not isinstance(versions, dict) or not all(isinstance(version, str) for version in versions.values()):
        raise UsageError(f"{path}: 'expected' must be a table of distribution = \"version\"")
    targets = document.get("target_sm", [])
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise UsageError(f"{path}: 'target_sm' must be a list of texts such as \"120\"")
    return Expectations(parse_waivers(document.get("waivers", []), str(path)), versions, tuple(targets))
