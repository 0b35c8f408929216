"""Files that claim to be shared objects and can't be judged or opened.

Looks for: files named like shared objects that are cut short, static, not ELF, or damaged; broken links; folders that
may not be read; objects for another machine; executables that dlopen refuses.
Decides: ``unreadable`` (error for damaged files, warning for what is only in the way); ``not-loadable`` (warning)
for whole objects that the loader refuses by their kind.
Can't see: damage inside code and data; compare the file with its RECORD for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

UNREADABLE, REFUSED = "unreadable", "not-loadable"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per file."""
    for item in scan.unreadable:
        yield Finding(
            check=UNREADABLE,
            severity=Severity.ERROR,
            object=item.path,
            message=item.reason,
            cause=item.reason,
            remedy="install the distribution that it belongs to again, or remove the file",
            distribution=scan.owner_label(f"{scan.root}/{item.path}"),
        )
    for facts, resolution in zip(scan.objects, scan.resolutions, strict=True):
        if resolution.verdict == "fails" and resolution.reason:
            yield Finding(
                check=REFUSED,
                severity=Severity.WARNING,
                object=scan.relative(facts.path),
                message=resolution.reason,
                cause=resolution.reason,
                remedy="nothing to do unless something here is meant to load it",
                distribution=scan.owner_label(facts.path),
            )


CHECK = Check((UNREADABLE, REFUSED), run, __doc__)
