"""Distributions that don't fit together.

Looks for: requirements (Requires-Dist) that what is installed violates, or that nothing installed satisfies;
flashinfer's python, cubin and jit-cache distributions of different versions; torchvision, torchaudio or torchcodec of
another build (+cpu, +cu129) than torch; .dist-info folders whose name and METADATA disagree; combinations that are
known to fail.
Decides: ``requirement`` (warning) by METADATA and the markers for the target's Python on Linux, extras included that
an installed distribution asks for; requirements that the definition overrides on purpose are information.
``lockstep`` (error): flashinfer raises RuntimeError at import for such a mix, and torch's companions are built
against one build of it. ``metadata`` (warning): an interrupted or forged installation. ``known-conflict`` (warning):
each with its source in this module.
Can't see: requirements that a distribution has and does not state, and what a resolver was told to ignore unless the
definition says so.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from abi_checks.checks.cuda_toolkit import runtime_version
from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution

REQUIREMENT, LOCKSTEP, METADATA, CONFLICT = "requirement", "lockstep", "metadata", "known-conflict"
# flashinfer 0.6.4, flashinfer/__init__.py and jit/env.py: the three must be of one version.
FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
TORCH_FAMILY = ("torchvision", "torchaudio", "torchcodec")
_CUDA_LOCAL = re.compile(r"\+cu(\d\d)\d$")
_SITE_PACKAGES = re.compile(r"(?:^|/)python(\d)\.(\d+)/site-packages/[^/]+$")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Distributions that don't work together: every named one within its versions."""

    versions: tuple[tuple[str, str], ...]
    cause: str
    remedy: str


CONFLICTS = (
    # SGLang 0.5.9, srt/server_args.py, check_torch_2_9_1_cudnn_compatibility; pytorch/pytorch issue 168167.
    *(
        Conflict(
            ((cudnn, "<9.15"), ("torch", "==2.9.1"), ("sglang", "==0.5.9")),
            "cuDNN before 9.15 with torch 2.9.1: a slow Conv3d, for which SGLang refuses multimodal models",
            f"install {cudnn} 9.15 or newer for multimodal models",
        )
        for cudnn in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
    ),
    # srt/utils/common.py, _get_fastapi_request_path, which SGLang 0.5.16 mended; fastapi.routing._IncludedRouter.
    Conflict(
        (("fastapi", ">=0.137"), ("sglang", ">=0.5.9,<0.5.16")),
        "with --enable-metrics SGLang asks each route for its path, and an included router among FastAPI's routes has "
        "none: /v1/loads is answered with HTTP 500",
        "install fastapi 0.136.3, or SGLang 0.5.16 or newer; without --enable-metrics it does no harm",
    ),
)


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """Findings on requirements, then on flashinfer, on metadata, and on known conflicts."""
    yield from _judge_requirements(scan, options.overrides)
    yield from _judge_flashinfer(scan)
    yield from _judge_torch(scan)
    yield from _judge_metadata(scan)
    yield from _judge_conflicts(scan)


def _judge_requirements(scan: Scan, overrides: frozenset[str]) -> Iterator[Finding]:
    environment = _environment(scan)
    extras: dict[str, set[str]] = {found.name: set() for found in scan.distributions}
    waiting = [(found, "") for found in scan.distributions]
    for distribution, extra in waiting:  # grows while extras are found to be asked for
        for line in distribution.requires:
            # Most lines belong to extras that nobody asked for: passed over before the costly parsing.
            if ("extra" in line.partition(";")[2]) != bool(extra):
                continue
            requirement = _parse(line)
            if requirement is None or not _applies(requirement, environment, extra):
                continue
            name = canonicalize_name(requirement.name)
            found = scan.installed(name)
            for wanted in requirement.extras - extras.get(name, set()):
                if found:
                    extras[name].add(wanted)
                    waiting.append((found, wanted))
            if found is None:
                if scan.complete:
                    yield _violated(scan, distribution, requirement, name, "not installed", overrides)
            elif not _satisfied(requirement.specifier, found.version):
                yield _violated(scan, distribution, requirement, name, found.version, overrides)


def _violated(
    scan: Scan, distribution: Distribution, requirement: Requirement, name: str, have: str, overrides: frozenset[str]
) -> Finding:
    meant = name in overrides
    state = "is not installed" if have == "not installed" else f"is {have}"
    return Finding(
        check=REQUIREMENT,
        severity=Severity.INFO if meant else Severity.WARNING,
        object=distribution.folder,
        message=f"requires {requirement.name}{requirement.specifier}, which {state}",
        cause=f"{name} {state}, against what its dependents require",
        remedy="nothing to do: the definition overrides this on purpose"
        if meant
        else f"install {name}{requirement.specifier}, or override it in the definition with a reason",
        evidence=(f"{distribution.folder}/METADATA: Requires-Dist: {requirement}",),
        distribution=distribution.label,
    )


def _environment(scan: Scan) -> dict[str, str]:
    """Marker values for the target: Linux, and the Python of its site-packages folder."""
    environment = {name: str(value) for name, value in default_environment().items()}
    match = next((m for found in scan.distributions if (m := _SITE_PACKAGES.search(found.folder))), None)
    version = (int(match[1]), int(match[2])) if match else sys.version_info[:2]
    environment["python_version"] = f"{version[0]}.{version[1]}"
    if version != sys.version_info[:2]:
        environment["python_full_version"] = f"{version[0]}.{version[1]}.0"
    return {**environment, "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}


def _applies(requirement: Requirement, environment: dict[str, str], extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra})


@cache
def _parse(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None  # old distributions have legacy specifiers, which installers pass over as well


def _satisfied(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return str(specifier) in ("", f"=={version}", f"==={version}")


def _judge_flashinfer(scan: Scan) -> Iterator[Finding]:
    parts = [found for name in FLASHINFER if (found := scan.installed(name))]
    # A local part (+cu130) names the CUDA that the cache was compiled for, not another release.
    if len({part.version.partition("+")[0] for part in parts}) > 1:
        yield Finding(
            check=LOCKSTEP,
            severity=Severity.ERROR,
            object=parts[0].folder,
            message=" and ".join(part.label for part in parts) + " are of different versions",
            cause="flashinfer's distributions are not of one version",
            remedy=f"install all of them at {parts[0].version.partition('+')[0]}",
            evidence=tuple(f"{part.folder}/METADATA: Version: {part.version}" for part in parts),
            distribution=parts[0].label,
        )
    kernels, runtime = scan.installed("flashinfer-jit-cache"), runtime_version(scan)
    built_for = _CUDA_LOCAL.search(kernels.version) if kernels else None
    if kernels and built_for and runtime and int(built_for[1]) != runtime[0]:
        yield Finding(
            check=LOCKSTEP,
            severity=Severity.ERROR,
            object=kernels.folder,
            message=f"{kernels.label} holds kernels for CUDA {built_for[1]}, the CUDA runtime here is {runtime[0]}",
            cause="flashinfer's compiled kernels are of another CUDA",
            remedy=f"install the flashinfer-jit-cache made for CUDA {runtime[0]}",
            distribution=kernels.label,
        )


def _judge_torch(scan: Scan) -> Iterator[Finding]:
    torch = scan.installed("torch")
    for name in TORCH_FAMILY:
        found = scan.installed(name)
        if torch and found:
            theirs, mine = torch.version.partition("+")[2], found.version.partition("+")[2]
            if mine and theirs and mine != theirs:
                yield Finding(
                    check=LOCKSTEP,
                    severity=Severity.ERROR,
                    object=found.folder,
                    message=f"{found.label} is not of the build of {torch.label}",
                    cause=f"torch is of the build {theirs}, and not all that is built with it",
                    remedy=f"install {name} from the index that torch came from",
                    distribution=found.label,
                )


def _judge_metadata(scan: Scan) -> Iterator[Finding]:
    for distribution in scan.distributions:
        name, _, version = os.path.basename(distribution.folder).removesuffix(".dist-info").rpartition("-")
        if canonicalize_name(name) != distribution.name or not _same(version, distribution.version):
            yield Finding(
                check=METADATA,
                severity=Severity.WARNING,
                object=distribution.folder,
                message=f"the folder is named for {name} {version}, and its METADATA says {distribution.label}",
                cause="a .dist-info folder and its METADATA name different distributions",
                remedy=f"install {distribution.name} again",
                distribution=distribution.label,
            )


def _same(left: str, right: str) -> bool:
    try:
        return Version(left.replace("_", "+")) == Version(right)
    except InvalidVersion:
        return left == right


def _judge_conflicts(scan: Scan) -> Iterator[Finding]:
    for conflict in CONFLICTS:
        found = [(scan.installed(name), versions) for name, versions in conflict.versions]
        if all(item and _satisfied(SpecifierSet(versions), item.version.partition("+")[0]) for item, versions in found):
            labels = [item.label for item, _ in found if item]
            yield Finding(
                check=CONFLICT,
                severity=Severity.WARNING,
                object="",
                message=f"{', '.join(labels)} don't go together",
                cause=conflict.cause,
                remedy=conflict.remedy,
                evidence=tuple(f"installed: {label}" for label in labels),
                distribution=labels[0],
            )


CHECK = Check((REQUIREMENT, LOCKSTEP, METADATA, CONFLICT), run, __doc__)
