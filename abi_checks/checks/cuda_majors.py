"""Two CUDA majors in one process.

Looks for: objects that load, and bring a CUDA runtime library (cudart, cuBLAS, NVRTC, nvJitLink, CUPTI) of another
major version into a process in which import torch has already loaded one.
Decides: by the sonames in what torch loads and in what the object loads. Two CUDA runtimes in one process each keep
their own context and streams: handles of one mean nothing to the other (CUDA Runtime API, "Interactions with the
driver API").
Can't see: a runtime linked statically into an object (it has no soname), and libraries opened later by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.checks.missing_libraries import CUDA_SONAME
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

ID = "cuda-majors"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object that mixes."""
    of_torch = _majors(scan, scan.process.closure)
    if len(of_torch) > 1:
        yield _finding(scan, "", of_torch, "import torch itself loads")
    for resolution in scan.resolutions:
        if resolution.verdict != "loads" or resolution.path in scan.process.closure:
            continue
        own = _majors(scan, resolution.closure)
        strange = {major: paths for major, paths in own.items() if of_torch and major not in of_torch}
        # A library of the other toolkit brings nothing into the process until something asks for it.
        if strange and not CUDA_SONAME.fullmatch(scan.by_path[resolution.path].soname):
            yield _finding(scan, resolution.path, {**of_torch, **strange}, "next to torch's")


def _majors(scan: Scan, paths: frozenset[str]) -> dict[str, list[str]]:
    """CUDA major → the libraries of it among ``paths``."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        match = CUDA_SONAME.fullmatch(scan.sonames.get(path, ""))
        if match:
            found.setdefault(match[1], []).append(path)
    return found


def _finding(scan: Scan, path: str, majors: dict[str, list[str]], how: str) -> Finding:
    names = " and ".join(f"CUDA {major}" for major in sorted(majors, key=int))
    return Finding(
        check=ID,
        severity=Severity.ERROR,
        object=scan.relative(path),
        message=f"brings libraries of {names} into one process, {how}",
        cause=f"{names} in one process",
        remedy="install the build of this distribution made for torch's CUDA",
        evidence=tuple(
            f"CUDA {major}: {scan.relative(item)}" for major, paths in sorted(majors.items()) for item in paths[:4]
        ),
        distribution=scan.owner_label(path),
    )


CHECK = Check((ID,), run, __doc__)
