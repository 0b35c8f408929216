"""Parts of the CUDA toolkit that don't belong together, and the driver they need.

Looks for: distributions for another toolkit major than the CUDA runtime's; distributions of one toolkit major
(nvidia-cuda-*, nvidia-nvjitlink, nvidia-nvvm, nvidia-nvtx) whose minor version is not that of the CUDA runtime; and
an NVIDIA driver older than the toolkit's major needs.
Decides: ``toolkit-majors`` (warning) by name (-cu12) or version: cuDNN, NCCL and others for two majors share file
names, and the wrong one gets loaded. ``toolkit-minors`` (warning) by the versions of those distributions, which are
the toolkit's own; the compiler's parts (nvcc, crt, nvvm) must be of one minor, since nvcc calls the others.
``driver-too-old`` (error) by NVIDIA's table of minor version compatibility: any driver from 450, 525, 580 runs
programs of CUDA 11, 12, 13.
Can't see: a forward-compatibility package (cuda-compat), with which data-center GPUs may have an older driver; and
toolkits that are no distributions, as /usr/local/cuda.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.host import Host, read_host
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution

MAJORS, MINORS, DRIVER = "toolkit-majors", "toolkit-minors", "driver-too-old"
# Their versions are the toolkit's: MAJOR.MINOR.BUILD. Those of cuBLAS, cuFFT, cuSPARSE ... are their own.
TOOLKIT_PART = re.compile(
    r"nvidia-(?:cuda-(?:runtime|nvrtc|nvcc|crt|cupti|culibos|opencl|cuobjdump|sanitizer-api|profiler-api|tileiras)"
    r"|nvjitlink|nvvm|nvtx|nvfatbin|nvptxcompiler)(?:-cu\d\d)?"
)
RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d\d)?")
_NAMED_MAJOR = re.compile(r"nvidia-[a-z0-9-]+-cu(\d\d)")
_VERSION = re.compile(r"(\d\d)\.(\d+)\.\d+")
# docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility", table 1.
MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
CUDART = re.compile(r"libcudart\.so\.(\d+)")


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per stray part, and one on the driver."""
    yield from judge_majors(scan)
    yield from judge_minors(scan.distributions)
    yield from judge_driver(scan, read_host())


def toolkit_version(distribution: Distribution) -> tuple[int, int] | None:
    """(major, minor) of the toolkit that a distribution is a part of; None for all others."""
    match = _VERSION.match(distribution.version) if TOOLKIT_PART.fullmatch(distribution.name) else None
    return (int(match[1]), int(match[2])) if match else None


def runtime_version(scan: Scan) -> tuple[int, int] | None:
    """(major, minor) of the target's CUDA runtime: of the one that import torch loads, else of the newest."""
    found = [
        version for item in scan.distributions if RUNTIME.fullmatch(item.name) and (version := toolkit_version(item))
    ]
    loaded = {
        int(match[1])
        for facts in scan.objects
        if facts.path in scan.process.closure and (match := CUDART.fullmatch(facts.soname))
    }
    return max((version for version in found if version[0] in loaded), default=max(found, default=None))


def judge_majors(scan: Scan) -> Iterator[Finding]:
    """Parts, and libraries built for them (cuDNN, NCCL), of another major than the target's runtime."""
    runtime = runtime_version(scan)
    for distribution in scan.distributions:
        named, version = _NAMED_MAJOR.fullmatch(distribution.name), toolkit_version(distribution)
        major = int(named[1]) if named else version[0] if version else None
        # Distributions of version 0.0.1 are empty: they only say that the name has changed.
        if runtime and major and major != runtime[0] and distribution.version != "0.0.1":
            yield Finding(
                check=MAJORS,
                severity=Severity.WARNING,
                object=distribution.folder,
                message=f"{distribution.name} is for CUDA {major}, the CUDA runtime here is {runtime[0]}.{runtime[1]}",
                cause=f"parts for CUDA {major} in an environment of CUDA {runtime[0]}",
                remedy=f"remove {distribution.name}, then install again what it overwrote",
                distribution=distribution.label,
            )


def judge_minors(distributions: tuple[Distribution, ...]) -> Iterator[Finding]:
    """Parts of one major with another minor than its runtime's, or than most parts where there is no runtime."""
    parts: dict[int, list[tuple[int, Distribution]]] = {}
    for distribution in distributions:
        version = toolkit_version(distribution)
        if version:
            parts.setdefault(version[0], []).append((version[1], distribution))
    for major, found in parts.items():
        minors = [minor for minor, _ in found]
        reference = next(
            (minor for minor, item in found if RUNTIME.fullmatch(item.name)), max(minors, key=minors.count)
        )
        listing = tuple(f"{item.label}: CUDA {major}.{minor}" for minor, item in found)
        for minor, distribution in found:
            if minor != reference:
                yield Finding(
                    check=MINORS,
                    severity=Severity.WARNING,
                    object=distribution.folder,
                    message=f"{distribution.name} is of CUDA {major}.{minor}, the toolkit here is {major}.{reference}",
                    cause=f"parts of CUDA {', '.join(f'{major}.{m}' for m in sorted(set(minors)))} in one environment",
                    remedy=f"pin {distribution.name} to {major}.{reference}, as its dependents do not",
                    evidence=listing,
                    distribution=distribution.label,
                )


def judge_driver(scan: Scan, host: Host) -> Iterator[Finding]:
    """Whether the driver is new enough for the CUDA runtimes of the target."""
    majors = sorted({int(match[1]) for name in scan.by_soname if (match := CUDART.fullmatch(name))})
    for major in majors[-1:]:
        minimum = MINIMUM_DRIVER.get(major)
        needs = f"CUDA {major} needs driver {minimum} or newer"
        if minimum is None or not host.driver:
            yield Finding(
                check=DRIVER,
                severity=Severity.UNKNOWN,
                object="",
                message=needs if minimum else f"which driver CUDA {major} needs is not known to this release",
                cause="this host has no NVIDIA driver to compare with" if minimum else f"CUDA {major} is too new",
                remedy="run this on the GPU host",
            )
        elif int(host.driver.partition(".")[0]) < minimum:
            yield Finding(
                check=DRIVER,
                severity=Severity.ERROR,
                object="",
                message=f"{needs}, and this host has {host.driver}",
                cause=f"driver {host.driver} is too old for CUDA {major}",
                remedy=f"install driver {minimum} or newer, or the build of this stack for an older CUDA",
                evidence=tuple(scan.relative(path) for path in scan.by_soname[f"libcudart.so.{major}"]),
            )


CHECK = Check((MAJORS, MINORS, DRIVER), run, __doc__)
