"""A target's facts and verdicts, gathered once: what every check is a function of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from abi_checks.elf import EM_X86_64, ElfError, ElfFacts, read_elf
from abi_checks.loader import Files, Loader, LoaderOptions, Resolution
from abi_checks.process import ProcessState, prepare
from abi_checks.sources.interface import Distribution, Source, Unreadable


@dataclass(frozen=True)
class Scan:
    """All that is known of one target.

    ``objects`` and ``resolutions`` run in parallel, in the order of paths; ``after_siblings`` holds, for objects that fail
    only because a library of the target is not loaded yet, the verdict once it is, and that library's path.
    """

    label: str
    root: str
    objects: tuple[ElfFacts, ...]
    resolutions: tuple[Resolution, ...]
    unreadable: tuple[Unreadable, ...]
    aliases: Mapping[str, tuple[str, ...]]
    """Path of an object → further paths of the same file."""
    process: ProcessState
    distributions: tuple[Distribution, ...]
    assumed_driver: tuple[str, ...]
    after_siblings: Mapping[str, tuple[Resolution, tuple[str, ...]]]

    def relative(self, path: str) -> str:
        """A path below the root, for people; others stay absolute."""
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else path

    @cached_property
    def owners(self) -> Mapping[str, Distribution]:
        """Relative path → the distribution whose RECORD lists it (the last one, where several do)."""
        owned: dict[str, Distribution] = {}
        for distribution in self.distributions:
            for path in distribution.files:
                if ".so" in path:
                    owned[path] = distribution
        return owned

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

    def installed(self, name: str) -> Distribution | None:
        """The distribution of that (normalised) name."""
        return next((found for found in self.distributions if found.name == name), None)


def scan(source: Source, *, library_path: Sequence[str] = (), assume_driver: bool = True) -> Scan:
    """Read every object of ``source`` and ask the loader about each."""
    objects: list[ElfFacts] = []
    unreadable: list[Unreadable] = []
    aliases: dict[str, tuple[str, ...]] = {}
    identities: list[tuple[ElfFacts, tuple[int, int]]] = []
    for item in source.objects():
        if isinstance(item, Unreadable):
            unreadable.append(item)
            continue
        path = os.path.join(source.root, item.path)
        try:
            facts = read_elf(item.data, path)
        except ElfError as error:
            if error.field == "e_ident" and "magic" in error.why and not _claims_to_be_elf(item.path):
                continue
            unreadable.append(Unreadable(item.path, str(error)))
            continue
        objects.append(facts)
        aliases[path] = tuple(os.path.join(source.root, alias) for alias in item.aliases)
        if item.identity:
            identities.append((facts, item.identity))
    files = Files(
        objects,
        {alias: path for path, others in aliases.items() for alias in others},
        source.folders(),
        source.root,
        source.on_disk,
    )
    for facts, identity in identities:
        files.identify(facts, identity)
    machine = EM_X86_64 if os.uname().machine == "x86_64" else 183
    options = LoaderOptions(machine=machine, library_path=tuple(library_path), assume_driver=assume_driver)
    loader = Loader(files, options)
    distributions = source.distributions()
    torch_version = next((found.version for found in distributions if found.name == "torch"), "")
    state = prepare(loader, str(source.interpreter or ""), [facts.path for facts in objects], torch_version)
    resolutions = loader.resolve(objects)
    return Scan(
        label=source.label,
        root=source.root,
        objects=tuple(objects),
        resolutions=tuple(resolutions),
        unreadable=tuple(unreadable),
        aliases=aliases,
        process=state,
        distributions=distributions,
        assumed_driver=tuple(sorted(loader.assumed_driver)),
        after_siblings={},
    )


def _claims_to_be_elf(path: str) -> bool:
    """Whether a file that isn't ELF should have been: names like ``x.so.py`` or ``x.so.txt`` are no claim."""
    return path.rpartition(".so")[2].strip(".0123456789") == ""
