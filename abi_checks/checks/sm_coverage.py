"""Device code for the target GPUs.

Looks for: objects whose fat binaries hold no code that a target GPU can run. Targets are those asked for, else the
GPUs of this host. Where a package keeps the same file name in sibling folders named after architectures (sm90/,
sm100/), its loader chooses between them: the one that sgl_kernel's loader takes is judged, of other packages the
best.
Decides: by the CUDA programming guide. Machine code runs on its own compute capability and on later minor ones of the
same major; with suffix ``a`` on its own alone; with ``f`` on its family. PTX without suffix is compiled by the driver
for any later GPU (information: the first start is slow; a warning if this host's driver is older than the PTX).
Without either, a kernel launch fails with "no kernel image is available" (warning; error for libtorch_cuda, without
which nothing runs). Each fat binary is looked at for itself: one whose kernels lack code is a warning even where
others have it (information for NVIDIA's own libraries, which have a kernel set for each architecture).
This is no ABI verdict: such a library loads, and only its kernels fail.
Can't see: whether a kernel that lacks code would ever be called on that GPU, device code outside fatbin sections, as
in cuFFT, and kernels compiled at run time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.compute_capability import can_be_compiled, dotted, parse_capability, release_of_ptx, runs_as_is
from abi_checks.fatbin import REGISTERED_SECTION, CodeKind, FatBinaries, code_names
from abi_checks.findings import Finding, Severity
from abi_checks.host import Host, read_host
from abi_checks.scan import Scan

ID = "sm-coverage"
ROUTING_FOLDER = re.compile(r"(?<=/)sm_?\d{2,3}[af]?(?=/)")
# sgl_kernel/load_utils.py (0.3.21 to 0.4.4): 9.0 is served from sm90/, every other GPU from sm100/.
ROUTES: tuple[tuple[re.Pattern[str], Callable[[int], str]], ...] = (
    (re.compile(r"/sgl_kernel/sm\d+/"), lambda capability: "sm90" if capability == 90 else "sm100"),
)
ESSENTIAL = re.compile(r"(?:^|/)torch/lib/libtorch_cuda\.so$")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of an object's fat binaries serve one GPU: as they are, only by the driver's compiler, or not."""

    native: int
    compiled: int
    total: int

    @property
    def served(self) -> int:
        """Those that serve it at all."""
        return self.native + self.compiled


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
            yield from _judge_group(scan, paths, capability, host)


def _alternatives(scan: Scan) -> Iterator[list[str]]:
    """Objects with device code, those that a loader chooses between by architecture together."""
    groups: dict[str, list[str]] = {}
    for path in sorted(scan.device_code):
        groups.setdefault(ROUTING_FOLDER.sub("sm*", path), []).append(path)
    yield from groups.values()


def _judge_group(scan: Scan, paths: list[str], capability: int, host: Host) -> Iterator[Finding]:
    counts = {path: coverage(scan.device_code[path], capability) for path in paths}
    if not any(count.total for count in counts.values()):
        return
    chosen = _routed(paths, capability) or max(paths, key=lambda path: (counts[path].served, counts[path].native))
    count = counts[chosen]
    if count.native == count.total:
        return
    owner = scan.owner_label(chosen)
    severity, message, cause, remedy = _describe(scan, chosen, count, capability, host, owner)
    yield Finding(
        check=ID,
        severity=severity,
        object=scan.relative(chosen),
        message=message,
        cause=cause,
        remedy=remedy,
        evidence=tuple(f"{scan.relative(path)}: {' '.join(code_names(scan.device_code[path]))}" for path in paths),
        distribution=owner,
    )


def _routed(paths: list[str], capability: int) -> str:
    """The alternative that a known loader takes; "" where its rule isn't known."""
    for pattern, folder_for in ROUTES:
        if all(pattern.search(path) for path in paths):
            return next((path for path in paths if f"/{folder_for(capability)}/" in path), "")
    return ""


def _describe(
    scan: Scan, path: str, count: Coverage, capability: int, host: Host, owner: str
) -> tuple[Severity, str, str, str]:
    """Severity, message, cause and remedy for an object that is not wholly served by machine code."""
    gpu = f"compute capability {dotted(capability)}"
    if not count.served and not _certain(scan, path):
        return (
            Severity.UNKNOWN,
            f"whether it has code for {gpu} can't be told",
            "fat binaries that start-up code does not register with the CUDA runtime, or of an unknown kind",
            "nothing to do: the library keeps its kernels elsewhere",
        )
    if not count.served:
        return (
            Severity.ERROR if ESSENTIAL.search(path) else Severity.WARNING,
            f"no code for {gpu}: its kernels can't be launched there",
            f"no device code for {gpu}",
            "use a build that has it, or choose a backend that does not call this library",
        )
    wanted = _newest_ptx(scan.device_code[path], capability)
    if wanted and host.driver_cuda and wanted > host.driver_cuda:
        driver = f"{host.driver_cuda[0]}.{host.driver_cuda[1]}"
        return (
            Severity.WARNING,
            f"{count.compiled} of {count.total} fat binaries have only PTX for {gpu}, too new for this host's driver",
            f"PTX of CUDA {wanted[0]}.{wanted[1]}, and the driver compiles PTX up to CUDA {driver}",
            f"install a driver of CUDA {wanted[0]}.{wanted[1]} or newer, or a build with machine code for {gpu}",
        )
    if count.served < count.total:
        return (
            Severity.INFO if owner.startswith("nvidia-") else Severity.WARNING,
            f"{count.served} of {count.total} fat binaries have code for {gpu}",
            f"some fat binaries have no code for {gpu}, so some kernels can't be launched there",
            "nothing to do where the library has a kernel set for each architecture, as NVIDIA's have; otherwise "
            "expect 'no kernel image is available' from the operations without code",
        )
    return (
        Severity.INFO,
        f"the driver compiles {count.compiled} of {count.total} fat binaries from PTX for {gpu}",
        f"PTX, and no machine code, for {gpu}",
        "expect a slow first start; the driver must be at least as new as the toolkit that wrote the PTX",
    )


def _newest_ptx(binaries: Sequence[FatBinaries], capability: int) -> tuple[int, int] | None:
    """The CUDA release that a driver must know to compile what has no machine code for that GPU."""
    wanted = []
    for group in binaries:
        if not group.linkable and not any(runs_as_is(code, capability) for code in group.codes):
            usable = [code for code in group.codes if can_be_compiled(code, capability)]
            releases = [release for code in usable if (release := release_of_ptx(code.ptx_version))]
            if releases and len(releases) == len(usable):
                wanted.append(min(releases))
    return max(wanted, default=None)


def _certain(scan: Scan, path: str) -> bool:
    """Whether what the fat binaries hold is all that the object can launch."""
    registered = any(section.name == REGISTERED_SECTION for section in scan.by_path[path].device_sections)
    return registered and not any(
        code.kind is CodeKind.OTHER for group in scan.device_code[path] for code in group.codes
    )


CHECK = Check((ID,), run, __doc__)
