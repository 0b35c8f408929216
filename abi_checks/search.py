"""Where the loader looks for a NEEDED entry without a slash: a row of small rules, in the order of ld.so(8).

Each rule yields folders; which rule an answer came from is kept with it (``found_via``), and so is every folder in
which it was not found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from abi_checks.elf_facts import ElfFacts
from abi_checks.elf_format import DF_1_NODEFLIB, EM_AARCH64, EM_X86_64
from abi_checks.files import Files
from abi_checks.ldcache import DEFAULT_FOLDERS, host_cache, hwcaps_levels

# ld.so(8): $LIB is lib or lib64 by the system's ABI; Debian's multiarch loaders use lib/x86_64-linux-gnu.
LIB = "lib/x86_64-linux-gnu" if os.path.isdir("/lib/x86_64-linux-gnu") else "lib64"
_PLATFORM = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """What of the host takes part. ``library_path`` is LD_LIBRARY_PATH; ``assume_driver`` supplies the NVIDIA driver's
    libraries where they are missing."""

    machine: int
    library_path: tuple[str, ...] = ()
    assume_driver: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One NEEDED entry to be found: its name, and who asks, first the object itself, then who loaded whom."""

    name: str
    chain: Sequence[ElfFacts]
    main: ElfFacts | None
    """The program."""
    files: Files
    options: LoaderOptions


Step = Callable[[Request], Iterator[tuple[str, str]]]
"""A rule of the search: yields (how an answer is reported, folder)."""


def rpaths(request: Request) -> Iterator[tuple[str, str]]:
    """DT_RPATH of the requester and of those that loaded it, unless the requester has DT_RUNPATH."""
    if request.chain[0].runpath:
        return
    chain = list(request.chain)
    if request.main is not None and request.main not in chain:
        chain.append(request.main)
    for facts in chain:
        if facts.rpath and not facts.runpath:
            for folder in _folders(request, facts.rpath, facts):
                yield f"RPATH of {facts.path}", folder


def library_path(request: Request) -> Iterator[tuple[str, str]]:
    """LD_LIBRARY_PATH."""
    for folder in _folders(request, request.options.library_path, request.chain[0]):
        yield "LD_LIBRARY_PATH", folder


def runpath(request: Request) -> Iterator[tuple[str, str]]:
    """DT_RUNPATH of the requester alone."""
    requester = request.chain[0]
    for folder in _folders(request, requester.runpath, requester):
        yield f"RUNPATH of {requester.path}", folder


def loader_cache(request: Request) -> Iterator[tuple[str, str]]:
    """/etc/ld.so.cache, unless the requester was linked with -z nodefaultlib."""
    cached = host_cache(request.options.machine).get(request.name)
    if cached and not request.chain[0].flags_1 & DF_1_NODEFLIB:
        yield "ld.so.cache", os.path.dirname(cached)


def default_folders(request: Request) -> Iterator[tuple[str, str]]:
    """The loader's own folders, unless the requester was linked with -z nodefaultlib."""
    if not request.chain[0].flags_1 & DF_1_NODEFLIB:
        for folder in DEFAULT_FOLDERS.get(request.options.machine, ()):
            if request.files.names(folder):
                yield "default folder", folder


STEPS: tuple[Step, ...] = (rpaths, library_path, runpath, loader_cache, default_folders)


def expand(path: str, facts: ElfFacts, machine: int) -> str:
    """A path with the loader's tokens $ORIGIN, $LIB and $PLATFORM replaced, for an entry of ``facts``."""
    if "$" not in path:
        return path
    origin = os.path.dirname(facts.path)
    for token, value in (("ORIGIN", origin), ("LIB", LIB), ("PLATFORM", _PLATFORM.get(machine, ""))):
        path = path.replace(f"${{{token}}}", value).replace(f"${token}", value)
    return path


def _folders(request: Request, paths: Iterable[str], facts: ElfFacts) -> Iterator[str]:
    for path in paths:
        folder = os.path.normpath(expand(path, facts, request.options.machine))
        if "glibc-hwcaps" in request.files.names(folder):
            for level in hwcaps_levels():
                yield f"{folder}/glibc-hwcaps/{level}"
        yield folder
