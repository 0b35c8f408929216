"""Wheel tags against what the objects really need.

Looks for: manylinux tags that promise an older glibc or libstdc++ than the objects ask for; "any" wheels with
compiled objects; abi3 modules that use C functions outside CPython's stable ABI, or of a later release than the tag
names; and extension modules whose file name binds them to another Python than the target's.
Decides: by the symbol versions that each object needs (weak ones left out) against the tag's (PEP 600: manylinux_2_28
runs wherever glibc is 2.28 or newer; libstdc++ as in the policies that auditwheel applies), and by CPython's list of
the stable ABI. ``wheel-tag`` is a warning: installers trust the tag and install what then does not load on an older
host. ``wrong-python`` is a warning: import does not find such a file. Whether the object loads on this very host is
the matter of ``unresolved-symbol``.
Can't see: instructions of newer processors, and functions of the limited C API that are macros or inline functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution
from abi_checks.stable_abi import Release, stable_symbols

TAG, PYTHON = "wheel-tag", "wrong-python"
SHOWN = 6
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_\w+")
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_GLIBCXX = re.compile(r"GLIBCXX_3\.4\.(\d+)")
_CPYTHON_TAG = re.compile(r"cp(\d)(\d+)")
_BOUND_NAME = re.compile(r"(.+)\.cpython-(\d)(\d+)\w*-[\w-]+\.so")
_SITE_PACKAGES = re.compile(r"(?:^|/)python(\d)\.(\d+)/")
# auditwheel 6, policy/manylinux-policy.json (x86_64): glibc of a policy → the newest GLIBCXX_3.4.N it allows.
_GLIBCXX_OF_GLIBC = {
    (2, 5): 8, (2, 12): 13, (2, 17): 19, (2, 24): 22, (2, 27): 24, (2, 31): 28, (2, 34): 29, (2, 35): 30, (2, 39): 33,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Promise:
    """What a distribution's tags promise, or None where they promise nothing of the kind."""

    glibc: tuple[int, int] | None
    abi3: Release | None
    pure: bool


def promise(tags: Iterable[str]) -> Promise:
    """Read the tags of a WHEEL file; the weakest platform counts, since an installer accepts any of them."""
    glibcs: list[tuple[int, int]] = []
    abi3: list[Release] = []
    platforms: set[str] = set()
    for tag in tags:
        interpreters, _, rest = tag.partition("-")
        abis, _, names = rest.partition("-")
        for name in names.split("."):
            platforms.add(name)
            match = _MANYLINUX.fullmatch(name)
            if match:
                glibcs.append((int(match[1]), int(match[2])))
            elif name.partition("_")[0] in _LEGACY:
                glibcs.append(_LEGACY[name.partition("_")[0]])
        if "abi3" in abis.split("."):
            abi3 += [(int(m[1]), int(m[2])) for part in interpreters.split(".") if (m := _CPYTHON_TAG.fullmatch(part))]
    return Promise(min(glibcs, default=None), min(abi3, default=None), platforms == {"any"})


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per distribution and broken promise, one per object for another Python."""
    owned: dict[str, list[ElfFacts]] = {}
    for facts in scan.objects:
        owned.setdefault(scan.owner_label(facts.path), []).append(facts)
        yield from _judge_name(scan, facts)
    for distribution in scan.distributions:
        objects = owned.get(distribution.label)
        if objects and distribution.tags:
            yield from _judge(scan, distribution, objects, promise(distribution.tags))


def _judge(scan: Scan, distribution: Distribution, objects: list[ElfFacts], promised: Promise) -> Iterator[Finding]:
    tags = ", ".join(distribution.tags)
    if promised.pure:
        yield _finding(
            scan, distribution, objects[0], f"tagged {tags}, and has compiled objects ({len(objects)})", (), "any"
        )
    if promised.glibc:
        for name, limit, needs in (
            ("GLIBC", promised.glibc, _glibc_needs),
            ("GLIBCXX", (3, 4, _glibcxx(promised.glibc)), _glibcxx_needs),
        ):
            needed = [(max(needs(facts), default=()), facts) for facts in objects]
            beyond = sorted((item for item in needed if item[0] > limit), key=lambda item: item[0], reverse=True)
            if beyond:
                worst = f"{name}_{_dotted(beyond[0][0])}"
                evidence = tuple(f"{scan.relative(facts.path)}: {name}_{_dotted(need)}" for need, facts in beyond)
                message = f"needs {worst}; its tags ({tags}) promise {name}_{_dotted(limit)}"
                yield _finding(scan, distribution, beyond[0][1], message, evidence, f"{name} {_dotted(limit)}")
    if promised.abi3:
        bound = [facts for facts in objects if (python := _bound_to(facts)) and python == _target_python(facts)]
        if bound:
            evidence = tuple(scan.relative(facts.path) for facts in bound)
            message = f"tagged {tags}, and has modules for one Python only"
            yield _finding(scan, distribution, bound[0], message, evidence, "abi3")
        for facts in objects:
            strange = _outside_stable_abi(facts, promised.abi3)
            if strange:
                message = (
                    f"uses C functions that the stable ABI of {_dotted(promised.abi3)} does not have ({len(strange)})"
                )
                yield _finding(scan, distribution, facts, message, strange, f"stable ABI {_dotted(promised.abi3)}")


def _finding(
    scan: Scan, distribution: Distribution, facts: ElfFacts, message: str, evidence: tuple[str, ...], kind: str
) -> Finding:
    hidden = len(evidence) - SHOWN
    return Finding(
        check=TAG,
        severity=Severity.WARNING,
        object=scan.relative(facts.path),
        message=message,
        cause=f"the wheel's tags promise more than its objects keep ({kind})",
        remedy="nothing to do where the objects load; report it to the distribution's maintainers",
        evidence=evidence[:SHOWN] + ((f"… {hidden} more",) if hidden > 0 else ()),
        distribution=distribution.label,
    )


def _glibc_needs(facts: ElfFacts) -> list[tuple[int, ...]]:
    matches = (_GLIBC.fullmatch(version) for _, versions in facts.versions_needed for version in versions)
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _glibcxx_needs(facts: ElfFacts) -> list[tuple[int, ...]]:
    # A bundled libstdc++ has another name, so its versions are no demand on the host's.
    of_host = (versions for library, versions in facts.versions_needed if library == "libstdc++.so.6")
    matches = (_GLIBCXX.fullmatch(version) for versions in of_host for version in versions)
    return [(3, 4, int(match[1])) for match in matches if match]


def _glibcxx(glibc: tuple[int, int]) -> int:
    return max((newest for known, newest in _GLIBCXX_OF_GLIBC.items() if known <= glibc), default=8)


def _outside_stable_abi(facts: ElfFacts, release: Release) -> tuple[str, ...]:
    """What an abi3 module uses beyond the stable ABI of a release. Modules named for one Python don't claim abi3."""
    if _bound_to(facts):
        return ()
    known = stable_symbols()
    strange = []
    for name, _ in facts.undefined:
        if name.startswith((b"Py", b"_Py")) and known.get(name, (99, 0)) > release:
            since = known.get(name)
            strange.append(f"{name.decode()}: {f'since Python {_dotted(since)}' if since else 'not in the stable ABI'}")
    return tuple(sorted(strange))


def _bound_to(facts: ElfFacts) -> Release | None:
    """The Python that an extension module's file name binds it to."""
    match = _BOUND_NAME.fullmatch(os.path.basename(facts.path))
    return (int(match[2]), int(match[3])) if match else None


def _target_python(facts: ElfFacts) -> Release | None:
    """The Python in whose site-packages folder an object lies."""
    match = _SITE_PACKAGES.search(facts.path)
    return (int(match[1]), int(match[2])) if match else None


def _judge_name(scan: Scan, facts: ElfFacts) -> Iterator[Finding]:
    folder, name = os.path.split(facts.path)
    bound, target = _bound_to(facts), _target_python(facts)
    if not bound or not target or bound == target:
        return
    stem = f"{folder}/{name.partition('.cpython-')[0]}"
    right = (f"{stem}.cpython-{target[0]}{target[1]}-", f"{stem}.abi3.so")
    if not any(path.startswith(right) for path in scan.by_path):
        yield Finding(
            check=PYTHON,
            severity=Severity.WARNING,
            object=scan.relative(facts.path),
            message=f"named for Python {_dotted(bound)}: an import in Python {_dotted(target)} does not find it",
            cause=f"extension modules for another Python than {_dotted(target)}",
            remedy=f"install a build for Python {_dotted(target)}, unless something opens this file by its path",
            distribution=scan.owner_label(facts.path),
        )


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


CHECK = Check((TAG, PYTHON), run, __doc__)
