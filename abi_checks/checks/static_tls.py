"""Thread-local variables that find no room in the process.

Looks for: objects whose code is of the TLS model "initial exec" (libgomp, jemalloc, tcmalloc …), and what glibc has
left in its static TLS block for objects that are opened after the start, once ``import torch`` has taken its part.
Decides: an error where an object would fit by itself and no longer does, a warning where it is larger than the block's
whole surplus, or aligned to more than that: such a library works only from a program's start on. dlopen says "cannot
allocate memory in static TLS block" in all cases.
Can't see: what other modules have taken by then, a surplus that GLIBC_TUNABLES has changed, the share that variables
reached by descriptors (TLSDESC, the rule on AArch64) take of the same block.
"""

from __future__ import annotations

from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from abi_checks.static_tls import enough

ID = "static-tls"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object that can't be opened for want of room."""
    for resolution in scan.resolutions:
        crowded = resolution.crowded
        if not crowded:
            continue
        owner = scan.relative(crowded.required_by)
        whose = "it" if crowded.required_by == resolution.path else f"{owner}, which it loads,"
        lacking = crowded.needed - crowded.free
        tunable = f", or with GLIBC_TUNABLES=glibc.rtld.optional_static_tls={enough(lacking)}" if lacking > 0 else ""
        why = f"and {crowded.free} are free there" if lacking > 0 else "aligned as glibc grants it at the start alone"
        yield Finding(
            check=ID,
            severity=Severity.ERROR if lacking > 0 and crowded.needed <= crowded.total else Severity.WARNING,
            object=scan.relative(resolution.path),
            message=f"{whose} has {crowded.needed} bytes of thread-local variables that must lie in static TLS, {why}",
            cause=f"{owner} can't be opened by a running process: no room in static TLS",
            remedy=f"start the process with {owner} in LD_PRELOAD{tunable}; "
            "nothing to do where it is only ever preloaded",
            evidence=(f"{crowded.total} bytes are free for what is opened after the start",),
            distribution=scan.owner_label(resolution.path),
        )


CHECK = Check((ID,), run, __doc__)
