"""The CUDA compilers that run-time compilation will use, against torch's CUDA and the target GPUs.

Looks for: nvcc as torch, flashinfer and deep_gemm find it (CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda), and the
ptxas that Triton brings or is told to use (TRITON_PTXAS_PATH).
Decides: ``nvcc-mismatch`` by nvcc's release: another major than the CUDA runtime of the target (warning: what it
compiles links the other runtime, and torch.utils.cpp_extension refuses), another minor (information), none found
although a distribution that compiles at run time is there (warning). ``nvcc-too-old`` and ``ptxas-too-old``
(warnings) by the release that first knew the target's architecture: nvcc then refuses the architecture, and Triton
stops with "Value 'sm_…' is not defined for option 'gpu-name'". The release is read from the build string in the
program; only an nvcc of this host that has none is asked for its version.
Can't see: the environment of the service, if it is not this shell's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from packaging.specifiers import SpecifierSet

from abi_checks.checks.cuda_toolkit import runtime_version
from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.compute_capability import dotted, parse_capability
from abi_checks.findings import Finding, Severity
from abi_checks.host import HOME_VARIABLES, Compiler, find_nvcc, read_host, read_release
from abi_checks.scan import Scan

NVCC, NVCC_OLD, PTXAS = "nvcc-mismatch", "nvcc-too-old", "ptxas-too-old"
# Distributions that call nvcc when a kernel is first needed.
RUN_TIME_COMPILERS = ("flashinfer-python", "deep-gemm", "sgl-deep-gemm", "tilelang")
# PTX ISA manual, "Release Notes", table of supported targets and the CUDA release of each PTX version.
FIRST_RELEASE = {90: (11, 8), 100: (12, 8), 120: (12, 8), 103: (12, 9), 121: (12, 9), 110: (13, 0)}
# flashinfer 0.6.12, compilation_context.py: compute capability 12.x needs nvcc 12.9.
FLASHINFER_FLOOR = SpecifierSet(">=0.6.12"), 12, (12, 9)
# Triton 3.6, knobs.py: for compute capability 10.0 and later it calls ptxas-blackwell where that is there.
BLACKWELL = 100


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """Findings on nvcc, then on each ptxas of Triton."""
    nvcc = find_nvcc(os.environ)
    targets = sorted({parse_capability(text) for text in options.target_sms}) or list(read_host().gpus)
    yield from judge_nvcc(scan, nvcc, os.environ)
    yield from judge_nvcc_targets(scan, nvcc, targets)
    yield from judge_ptxas(scan, targets, os.environ)


def judge_nvcc(scan: Scan, nvcc: Compiler | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether there is an nvcc, and of the target's CUDA."""
    runtime = runtime_version(scan)
    if runtime is None:
        return
    wanting = _run_time_compilers(scan)
    mine = f"{runtime[0]}.{runtime[1]}"
    if nvcc is None or nvcc.release is None:
        if wanting:
            yield Finding(
                check=NVCC,
                severity=Severity.WARNING if nvcc is None else Severity.UNKNOWN,
                object="",
                message="no nvcc is found" if nvcc is None else f"{nvcc.path} does not say which release it is",
                cause="kernels that are compiled at run time need nvcc",
                remedy=f"install the toolkit {mine} and set CUDA_HOME to its folder",
                evidence=(
                    *(
                        f"{name} is set, and has no bin/nvcc"
                        for name in HOME_VARIABLES
                        if nvcc is None and environ.get(name)
                    ),
                    *(f"compiles at run time: {label}" for label in wanting),
                ),
            )
        return
    theirs = f"{nvcc.release[0]}.{nvcc.release[1]}"
    if nvcc.release != runtime:
        other_major = nvcc.release[0] != runtime[0]
        yield Finding(
            check=NVCC,
            severity=Severity.WARNING if other_major else Severity.INFO,
            object="",
            message=f"nvcc is of CUDA {theirs}, the CUDA runtime here is {mine}",
            cause=f"kernels compiled at run time are built with CUDA {theirs}",
            remedy=f"set CUDA_HOME to a toolkit {mine}" if other_major else "nothing to do within one major",
            evidence=(
                f"found via {nvcc.found_via}: {nvcc.path}",
                *(f"compiles at run time: {label}" for label in wanting),
            ),
        )


def judge_nvcc_targets(scan: Scan, nvcc: Compiler | None, targets: Sequence[int]) -> Iterator[Finding]:
    """Whether nvcc can compile for the targets what is compiled at run time."""
    wanting = _run_time_compilers(scan)
    if nvcc is None or nvcc.release is None or not wanting:
        return
    flashinfer = scan.installed("flashinfer-python")
    versions, generation, floor = FLASHINFER_FLOOR
    for capability in targets:
        first, who = FIRST_RELEASE.get(capability, (0, 0)), "compilation needs"
        strict = flashinfer is not None and versions.contains(flashinfer.version, prereleases=True)
        if strict and capability // 10 == generation and first < floor:
            first, who = floor, "flashinfer asks for"
        if nvcc.release < first:
            gpu = f"compute capability {dotted(capability)}"
            yield Finding(
                check=NVCC_OLD,
                severity=Severity.WARNING,
                object="",
                message=f"nvcc is of CUDA {nvcc.release[0]}.{nvcc.release[1]}, too old for {gpu}",
                cause=f"for {gpu}, {who} nvcc of CUDA {first[0]}.{first[1]} or newer",
                remedy=f"set CUDA_HOME to a toolkit {first[0]}.{first[1]} or newer",
                evidence=(
                    f"found via {nvcc.found_via}: {nvcc.path}",
                    *(f"compiles at run time: {label}" for label in wanting),
                ),
            )


def _run_time_compilers(scan: Scan) -> list[str]:
    return [found.label for name in RUN_TIME_COMPILERS if (found := scan.installed(name))]


def judge_ptxas(scan: Scan, targets: Sequence[int], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the ptxas that Triton will call knows the targets."""
    for capability in targets:
        first = FIRST_RELEASE.get(capability)
        if first is None:
            continue
        gpu = f"compute capability {dotted(capability)}"
        for owner, path, release in _triton_compilers(scan, capability, environ):
            if release is not None and release < first:
                yield Finding(
                    check=PTXAS,
                    severity=Severity.WARNING,
                    object=scan.relative(path),
                    message=f"ptxas of CUDA {release[0]}.{release[1]} does not know {gpu}",
                    cause=f"{gpu} needs ptxas of CUDA {first[0]}.{first[1]} or newer",
                    remedy="set TRITON_PTXAS_PATH to the ptxas of the toolkit in use",
                    distribution=owner,
                )


def _triton_compilers(
    scan: Scan, capability: int, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """(distribution, path, release) of the ptxas that each Triton of the target calls for that GPU."""
    named = "TRITON_PTXAS_BLACKWELL_PATH" if capability >= BLACKWELL else "TRITON_PTXAS_PATH"
    if environ.get(named):
        yield "", environ[named], read_release(environ[named])
        return
    names = ("ptxas-blackwell", "ptxas") if capability >= BLACKWELL else ("ptxas",)
    for distribution in scan.distributions:
        if "triton" not in distribution.name:
            continue
        for name in names:
            path = next((item for item in distribution.files if item.endswith(f"/backends/nvidia/bin/{name}")), "")
            if path:
                full = f"{scan.root}/{path}"
                yield distribution.label, full, read_release(full)
                break


CHECK = Check((NVCC, NVCC_OLD, PTXAS), run, __doc__)
