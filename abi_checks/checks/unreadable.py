"""Files that claim to be shared objects and can't be judged or opened.

Looks for: files named like shared objects that are cut short, static, not ELF, or damaged; broken links; folders that
may not be read; objects for another machine; executables that dlopen refuses.
Decides: ``unreadable`` (error for damaged files, warning for what is only in the way); ``not-loadable`` (warning)
for whole objects that the loader refuses by their kind; ``wrong-machine`` (error) where all objects of a distribution,
or of a target without distributions, are built for another machine than this one.
Can't see: damage inside code and data; compare the file with its RECORD for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

UNREADABLE, REFUSED, MACHINE = "unreadable", "not-loadable", "wrong-machine"


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
    here = os.uname().machine
    native = {scan.owner_label(one.path) for one in scan.resolutions if not one.foreign}
    for facts, resolution in zip(scan.objects, scan.resolutions, strict=True):
        if resolution.verdict != "fails" or not resolution.reason:
            continue
        owner = scan.owner_label(facts.path)
        if resolution.foreign and owner not in native:
            yield Finding(
                check=MACHINE,
                severity=Severity.ERROR,
                object=scan.relative(facts.path),
                message=resolution.reason,
                cause=f"{owner or 'all of it'} is {resolution.reason}, and this is {here}",
                remedy=f"install the build for {here}; what is meant for another machine is judged on one",
                distribution=owner,
            )
        else:
            yield Finding(
                check=REFUSED,
                severity=Severity.WARNING,
                object=scan.relative(facts.path),
                message=resolution.reason,
                cause=resolution.reason,
                remedy="nothing to do unless something here is meant to load it",
                distribution=owner,
            )


CHECK = Check((UNREADABLE, REFUSED, MACHINE), run, __doc__)
