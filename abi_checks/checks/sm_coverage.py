"""Device code for the target GPUs.

Looks for: objects whose fat binaries hold no code that a target GPU can run. Targets are those asked for, else the
GPUs of this host. Where a package keeps the same file name in sibling folders named after architectures (sm90/,
sm100/), its loader chooses between them, so they are judged together.
Decides: by the CUDA programming guide. Machine code runs on its own compute capability and on later minor ones of the
same major; with suffix ``a`` on its own alone; with ``f`` on its family. PTX without suffix is compiled by the driver
for any later GPU (information: the first start is slow, and the driver must know the PTX version). Without either, a
kernel launch fails with "no kernel image is available" (warning; error for libtorch_cuda, without which nothing
runs).
This is no ABI verdict: such a library loads, and only its kernels fail.
Can't see: whether a kernel that lacks code would ever be called on that GPU (a kernel set for each architecture is
normal), device code outside fatbin sections, as in cuFFT, and kernels compiled at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.compute_capability import can_be_compiled, dotted, parse_capability, runs_as_is
from abi_checks.fatbin import REGISTERED_SECTION, CodeKind, FatBinaries, code_names
from abi_checks.findings import Finding, Severity
from abi_checks.host import Host, read_host
from abi_checks.scan import Scan

ID = "sm-coverage"
ROUTING_FOLDER = re.compile(r"(?<=/)sm_?\d{2,3}[af]?(?=/)")
ESSENTIAL = re.compile(r"(?:^|/)torch/lib/libtorch_cuda\.so$")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of an object's fat binaries serve one GPU: as they are, only by the driver's compiler, or not."""

    native: int
    compiled: int
    total: int


def coverage(binaries: Sequence[FatBinaries], capability: int) -> Coverage:
    """Count the fat binaries that a driver would load; input of the device linker is none of those."""
    native = compiled = total = 0
    for group in binaries:
        if group.linkable:
            continue
        total += group.count
        if any(runs_as_is(code, capability) for code in group.codes):
            native += group.count
        elif any(can_be_compiled(code, capability) for code in group.codes):
            compiled += group.count
    return Coverage(native, compiled, total)


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object (or group of alternatives) and target that is not fully served."""
    if scan.device_code:
        yield from judge(scan, options.target_sms, read_host())


def judge(scan: Scan, target_sms: Sequence[str], host: Host) -> Iterator[Finding]:
    """The findings for explicit targets, or for the host's GPUs. Raises UsageError for what is no architecture."""
    targets = sorted({parse_capability(text) for text in target_sms}) or host.gpus
    if not targets:
        yield Finding(
            check=ID,
            severity=Severity.UNKNOWN,
            object="",
            message="no target GPU is known, so device code was not judged",
            cause=host.gpu_problem,
            remedy="name the GPUs with --target-sm, for example --target-sm 120",
        )
    groups = list(_alternatives(scan))
    for capability in targets:
        for paths in groups:
            yield from _judge_group(scan, paths, capability)


def _alternatives(scan: Scan) -> Iterator[list[str]]:
    """Objects with device code, those that a loader chooses between by architecture together."""
    groups: dict[str, list[str]] = {}
    for path in sorted(scan.device_code):
        groups.setdefault(ROUTING_FOLDER.sub("sm*", path), []).append(path)
    yield from groups.values()


def _judge_group(scan: Scan, paths: list[str], capability: int) -> Iterator[Finding]:
    counts = {path: coverage(scan.device_code[path], capability) for path in paths}
    if not any(count.total for count in counts.values()):
        return
    best = max(paths, key=lambda path: (counts[path].native + counts[path].compiled, counts[path].native))
    count = counts[best]
    if count.native == count.total:
        return
    gpu = f"compute capability {dotted(capability)}"
    codes = [f"{scan.relative(path)}: {' '.join(code_names(scan.device_code[path]))}" for path in paths]
    if count.native + count.compiled:
        served = f"{count.native + count.compiled} of {count.total} fat binaries"
        severity = Severity.INFO
        if count.native + count.compiled < count.total:
            message = f"{served} have code for {gpu}"
            cause = f"some fat binaries have no code for {gpu}; a kernel set for each architecture is normal"
            remedy = "nothing to do, unless a kernel launch fails with 'no kernel image is available'"
        else:
            message = f"the driver compiles {count.compiled} of {count.total} fat binaries from PTX for {gpu}"
            cause = f"PTX, and no machine code, for {gpu}"
            remedy = "expect a slow first start; the driver must be at least as new as the toolkit that wrote the PTX"
    elif not _certain(scan, best):
        severity = Severity.UNKNOWN
        message = f"whether it has code for {gpu} can't be told"
        cause = "fat binaries that start-up code does not register with the CUDA runtime, or of an unknown kind"
        remedy = "nothing to do: the library keeps its kernels elsewhere"
    else:
        severity = Severity.ERROR if ESSENTIAL.search(best) else Severity.WARNING
        message = f"no code for {gpu}: its kernels can't be launched there"
        cause = f"no device code for {gpu}"
        remedy = "use a build that has it, or choose a backend that does not call this library"
    yield Finding(
        check=ID,
        severity=severity,
        object=scan.relative(best),
        message=message,
        cause=cause,
        remedy=remedy,
        evidence=tuple(codes),
        distribution=scan.owner_label(best),
    )


def _certain(scan: Scan, path: str) -> bool:
    """Whether what the fat binaries hold is all that the object can launch."""
    registered = any(section.name == REGISTERED_SECTION for section in scan.by_path[path].device_sections)
    return registered and not any(
        code.kind is CodeKind.OTHER for group in scan.device_code[path] for code in group.codes
    )


CHECK = Check((ID,), run, __doc__)
