"""Libraries that an object needs and the loader does not find.

Looks for: NEEDED entries that neither a library already in the process, nor RPATH, LD_LIBRARY_PATH, RUNPATH,
ld.so.cache or the default folders satisfy.
Decides: ``missing-library`` (error) where nothing helps; ``loads-after-sibling`` where the library lies in the target
and the object loads once it has been opened, which is what the importing package's own Python code has to do
(information where the package requires the library's, a warning where it does not); ``loads-as-dependency``
(information) where the object can't be opened by itself and is opened by others that lead the loader to its
libraries, as bundled libraries are.
The NVIDIA driver's libraries come from the host; without a driver they are assumed, and the report says so.
Can't see: libraries opened at run time with dlopen by name, except those that import torch opens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.driver import DRIVER_LIBRARIES
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.resolution import Missing, Verdict
from abi_checks.scan import Scan

MISSING, SIBLING, DEPENDENCY = "missing-library", "loads-after-sibling", "loads-as-dependency"
CUDA_SONAME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti|nppc|nvfatbin)\.so\.(\d+)")
NVRTC = re.compile(r"libnvrtc(?:-builtins)?\.so\.[\d.]+")


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object and library it lacks, or one saying what it takes to load it."""
    dependents = _dependents(scan)
    spread = Counter(
        gap.library
        for facts, resolution in zip(scan.objects, scan.resolutions, strict=True)
        for gap in resolution.missing
        if gap.required_by == facts.path
    )
    for facts, resolution in zip(scan.objects, scan.resolutions, strict=True):
        own = [gap for gap in resolution.missing if gap.required_by == facts.path]
        if not resolution.missing and not resolution.unresolved:
            continue
        if facts.path in dependents and not own:
            continue
        if facts.path in dependents:
            yield _as_dependency(scan, facts, own, dependents[facts.path])
        elif facts.path in scan.after_siblings:
            yield _after_sibling(scan, facts, own or list(resolution.missing))
        else:
            if own:
                yield _missing(scan, facts, sorted(own, key=lambda gap: (-spread[gap.library], gap.library)))
            inherited = sorted(
                {gap.required_by for gap in resolution.missing} | {lack.required_by for lack in resolution.unresolved}
            )
            if not own and facts.path not in inherited:
                yield _consequence(scan, facts, inherited)


def _dependents(scan: Scan) -> dict[str, str]:
    """Object → an object that loads and brings it along."""
    brought: dict[str, str] = {}
    answers = [*scan.resolutions, *(after for after, _ in scan.after_siblings.values())]
    for resolution in answers:
        if resolution.verdict is Verdict.LOADS:
            for path in resolution.closure:
                if path != resolution.path:
                    brought.setdefault(path, resolution.path)
    return brought


def _as_dependency(scan: Scan, facts: ElfFacts, own: list[Missing], dependent: str) -> Finding:
    libraries = ", ".join(gap.library for gap in own)
    return Finding(
        check=DEPENDENCY,
        severity=Severity.INFO,
        object=scan.relative(facts.path),
        message=f"not loadable by itself ({libraries} not found), loaded as a library of {scan.relative(dependent)}",
        cause="bundled libraries that load with the objects that need them",
        remedy="nothing to do",
        distribution=scan.owner_label(facts.path),
    )


def _after_sibling(scan: Scan, facts: ElfFacts, gaps: list[Missing]) -> Finding:
    _, siblings = scan.after_siblings[facts.path]
    owner = scan.owner(facts.path)
    strangers = [
        path for path in siblings if not (owner and (other := scan.owner(path)) and scan.requires(owner, other.name))
    ]
    libraries = ", ".join(sorted({gap.library for gap in gaps}))
    return Finding(
        check=SIBLING,
        severity=Severity.WARNING if strangers else Severity.INFO,
        object=scan.relative(facts.path),
        message=f"loads only after {', '.join(map(scan.relative, siblings))} has been loaded ({libraries})",
        cause=f"{libraries} must have been opened before, by the package's own Python code",
        remedy="import the package, not the extension module by itself"
        if not strangers
        else f"make sure that something opens {libraries} first: the package does not require its distribution",
        evidence=tuple(f"found in the target: {scan.relative(path)}" for path in siblings),
        distribution=scan.owner_label(facts.path),
    )


def _missing(scan: Scan, facts: ElfFacts, gaps: list[Missing]) -> Finding:
    # The library that most objects lack names the cause, so that one absent package is one subject.
    first = gaps[0]
    cause, remedy = _explain(scan, first)
    return Finding(
        check=MISSING,
        severity=Severity.ERROR if scan.complete else Severity.UNKNOWN,
        object=scan.relative(facts.path),
        message=f"needs {', '.join(gap.library for gap in gaps)}, which the loader does not find",
        cause=cause,
        remedy=remedy,
        evidence=tuple(f"looked for {first.library} in {scan.private(place)}" for place in _places(first)),
        distribution=scan.owner_label(facts.path),
    )


def _places(gap: Missing) -> Iterator[str]:
    """The places considered, one line for each rule of the search."""
    rules: dict[str, list[str]] = {}
    for place in gap.considered:
        rule, _, rest = place.partition(": ")
        folder, _, why = rest.rpartition(": ")
        rules.setdefault(rule, []).append(folder if why == "no such file" else rest)
    for rule, folders in rules.items():
        yield f"{rule}: {', '.join(folders)}"


def _consequence(scan: Scan, facts: ElfFacts, culprits: list[str]) -> Finding:
    names = ", ".join(map(scan.relative, culprits))
    return Finding(
        check=MISSING,
        severity=Severity.ERROR,
        object=scan.relative(facts.path),
        message=f"loads {names}, which does not load",
        cause=f"{names} does not load",
        remedy="see the finding on that library",
        distribution=scan.owner_label(facts.path),
    )


def _explain(scan: Scan, gap: Missing) -> tuple[str, str]:
    library = gap.library
    present = scan.by_soname.get(library, ())
    if library in DRIVER_LIBRARIES:
        return (
            f"{library} belongs to the NVIDIA driver, and this host has none",
            "run this on the GPU host, or install the driver there",
        )
    if present:
        where = ", ".join(scan.relative(path) for path in present)
        if any(scan.fails(path) for path in present):
            return f"{library} is there ({where}) and does not load itself", "see the finding on that library"
        return (
            f"{library} is there ({where}), and nothing leads the loader to it",
            f"open {where} before this object, or put its folder on LD_LIBRARY_PATH",
        )
    if NVRTC.fullmatch(library):
        return (
            f"{library}, the run-time compiler of CUDA {library.partition('.so.')[2]}, is not installed",
            "install nvidia-cuda-nvrtc of that CUDA version",
        )
    match = CUDA_SONAME.fullmatch(library)
    if match:
        loaded = (scan.sonames.get(path, "") for path in scan.process.closure)
        majors = sorted({major for soname in loaded if (major := _major(soname))}, key=int)
        has = f"torch has CUDA {' and '.join(majors)}" if majors else "no CUDA libraries are loaded with torch"
        return (
            f"built for CUDA {match[1]} ({library}), and {has}",
            f"install the build of its distribution made for CUDA {majors[-1] if majors else match[1]}",
        )
    return (
        f"{library} is in no folder that the loader searches",
        "install the package that has it, or waive the finding if the feature it serves is not used here",
    )


def _major(soname: str) -> str:
    match = CUDA_SONAME.fullmatch(soname)
    return match[1] if match else ""


CHECK = Check((MISSING, SIBLING, DEPENDENCY), run, __doc__)
