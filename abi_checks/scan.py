"""A target's facts and verdicts, gathered once: what every check is a function of."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from packaging.utils import canonicalize_name

from abi_checks.answers import Question, ask
from abi_checks.cache import ScanCache
from abi_checks.elf_facts import ElfFacts
from abi_checks.elf_format import EM_AARCH64, EM_X86_64
from abi_checks.facts import ObjectFacts, Reader, ReadFacts
from abi_checks.fatbin import FatBinaries
from abi_checks.process import ProcessState
from abi_checks.read_ahead import ReadAhead
from abi_checks.resolution import Resolution, Verdict
from abi_checks.search import LoaderOptions
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.interface import Distribution, Source, Unreadable
from abi_checks.symbol_owners import Owner, owner_of

MACHINES = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Scan:
    """All that is known of one target.

    ``objects`` and ``resolutions`` run in parallel, in the order of paths. ``complete`` tells whether the target is
    meant to have all that its objects need, as an environment is and a single wheel is not.
    """

    label: str
    root: str
    complete: bool
    objects: tuple[ElfFacts, ...]
    resolutions: tuple[Resolution, ...]
    unreadable: tuple[Unreadable, ...]
    aliases: Mapping[str, tuple[str, ...]]
    """Path of an object → further paths of the same file."""
    device_code: Mapping[str, tuple[FatBinaries, ...]]
    """Path of an object → the device code it carries; absent where it carries none."""
    process: ProcessState
    distributions: tuple[Distribution, ...]
    assumed_driver: tuple[str, ...]
    after_siblings: Mapping[str, tuple[Resolution, tuple[str, ...]]]
    """For an object that fails alone and loads once libraries of the target are loaded: that verdict, and their
    paths."""
    sonames: Mapping[str, str] = field(repr=False)
    """Absolute path → soname of every object that took part, the host's included."""
    needed_of_torch: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    """Absolute path → the names of torch that an object outside torch needs and that nothing else in the target
    defines; absent where it needs none."""

    def relative(self, path: str) -> str:
        """A path below the root, for people; others stay absolute."""
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else path

    def private(self, text: str) -> str:
        """A text that names paths, with those below the root made relative."""
        return text.replace(self.root + "/", "")

    @cached_property
    def owners(self) -> Mapping[str, Distribution]:
        """Relative path → the distribution whose RECORD lists it (the last one, where several do)."""
        return {
            path: distribution for distribution in self.distributions for path in distribution.files if ".so" in path
        }

    def owner(self, path: str) -> Distribution | None:
        """The distribution that an object (absolute path) belongs to; one of its aliases may be what RECORD lists."""
        for name in (path, *self.aliases.get(path, ())):
            found = self.owners.get(self.relative(name))
            if found:
                return found
        return None

    def owner_label(self, path: str) -> str:
        """``name==version`` of the owner, or ""."""
        found = self.owner(path)
        return found.label if found else ""

    @cached_property
    def by_path(self) -> Mapping[str, ElfFacts]:
        """Absolute path → facts."""
        return {facts.path: facts for facts in self.objects}

    @cached_property
    def by_soname(self) -> Mapping[str, tuple[str, ...]]:
        """soname, or file name where there is none → the objects of the target that have it."""
        found: dict[str, tuple[str, ...]] = {}
        for facts in self.objects:
            name = facts.soname or os.path.basename(facts.path)
            found[name] = (*found.get(name, ()), facts.path)
        return found

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """Absolute path → verdict; ``unknown`` also where what is missing may come from outside an incomplete
        target."""
        return {
            resolution.path: Verdict.UNKNOWN if self._open_question(resolution) else resolution.verdict
            for resolution in self.resolutions
        }

    def _open_question(self, resolution: Resolution) -> bool:
        if resolution.verdict is not Verdict.FAILS or resolution.reason or resolution.crowded:
            return False
        if any(self.can_judge(owner_of(lack.symbol, lack.version).owner) for lack in resolution.unresolved):
            return False
        return not self.complete or not resolution.missing

    def can_judge(self, owner: Owner) -> bool:
        """Whether a symbol of this owner that isn't found is certainly missing.

        The host has glibc and libstdc++; what is CPython's the loader misses only where an interpreter took part.
        """
        if owner in (Owner.TORCH, Owner.TORCH_STABLE):
            return self.process.torch or self.complete
        return self.complete or owner in (Owner.GLIBC, Owner.LIBSTDCXX, Owner.CPYTHON)

    def fails(self, path: str) -> bool:
        """Whether an object of the target would not load."""
        return self.verdicts.get(path) is Verdict.FAILS

    def installed(self, name: str) -> Distribution | None:
        """The distribution of that (normalised) name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Distribution]:
        return {found.name: found for found in self.distributions}

    def requires(self, distribution: Distribution, name: str) -> bool:
        """Whether a distribution is, or requires directly or through others, the one called ``name``; markers are
        ignored."""
        seen, waiting = {distribution.name}, [distribution]
        while waiting:
            for line in waiting.pop().requires:
                match = _REQUIREMENT_NAME.match(line)
                wanted = canonicalize_name(match[1]) if match else ""
                found = self._by_name.get(wanted)
                if found and wanted not in seen:
                    seen.add(wanted)
                    waiting.append(found)
        return name in seen


def scan(
    source: Source,
    *,
    library_path: Sequence[str] = (),
    assume_driver: bool = True,
    cache: Path | None = None,
) -> Scan:
    """Read every object of ``source`` and ask the loader about each; ``cache`` is a folder for the facts of files on
    disk."""
    with ExitStack() as stack:
        memory = None
        read: Reader = ReadFacts(source.root)
        if isinstance(source, FolderSource):
            if cache:
                memory = stack.enter_context(ScanCache(source.root, cache))
                source.list_folder = memory.list_folder
                source.read_distribution = memory.read_distribution
            new = [file for file in source.files() if not (memory and memory.knows(file))]
            read = stack.enter_context(ReadAhead(source.root, new))
        distributions = source.distributions()
        gathered = list(source.map_objects(partial(memory.read_facts, read) if memory else read))
        found = [item for item in gathered if isinstance(item, ObjectFacts)]
        torch = next((one for one in distributions if one.name == "torch"), None)
        question = Question(
            root=source.root,
            on_disk=source.on_disk,
            objects=found,
            folders=source.folders(),
            interpreter=str(source.interpreter or ""),
            torch_version=torch.version if torch else "",
            torch_files=torch.files if torch else frozenset(),
            options=LoaderOptions(MACHINES.get(os.uname().machine, 0), tuple(library_path), assume_driver),
        )
        answers = memory.ask(question) if memory else ask(question)[0]
    unreadable = [item for item in gathered if isinstance(item, Unreadable)]
    for item in found:
        if item.device_problem:
            path = item.elf.path[len(source.root) + 1 :]
            unreadable.append(Unreadable(path, f"its device code can't be read: {item.device_problem}"))
    return Scan(
        label=source.label,
        root=source.root,
        complete=source.complete,
        objects=tuple(item.elf for item in found),
        resolutions=answers.resolutions,
        unreadable=tuple(unreadable),
        aliases={item.elf.path: item.aliases for item in found},
        device_code={item.elf.path: item.device_code for item in found if item.device_code},
        process=answers.process,
        distributions=distributions,
        assumed_driver=answers.assumed_driver,
        after_siblings=answers.after_siblings,
        sonames=answers.sonames,
        needed_of_torch=answers.needed_of_torch,
    )
