"""What the loader says of all the objects of a target, and all that this depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from abi_checks.elf_facts import ElfFacts
from abi_checks.facts import ObjectFacts
from abi_checks.files import Files
from abi_checks.ldcache import hwcaps_levels, read_host_cache
from abi_checks.loader import Loader
from abi_checks.process import ProcessState, prepare
from abi_checks.resolution import Resolution, Verdict
from abi_checks.search import LIB, LoaderOptions
from abi_checks.torch_symbols import names_of_torch


@dataclass(frozen=True, slots=True)
class Question:
    """All that the answers depend on, but for the files and folders outside the target that the loader looks into."""

    root: str
    on_disk: bool
    objects: Sequence[ObjectFacts]
    """In the order of paths."""
    folders: Mapping[str, frozenset[str]]
    """Absolute folder → the names in it that may be libraries."""
    interpreter: str
    """The program's path, or ""."""
    torch_version: str
    """"" where the target has no torch, or not as a distribution."""
    torch_files: frozenset[str]
    """What the distribution of torch owns, relative to the root."""
    options: LoaderOptions

    def key(self) -> tuple[object, ...]:
        """The question as plain data that can be compared; equal keys are the same question on this host."""
        options = self.options
        host = (LIB, hwcaps_levels(), read_host_cache(), os.path.realpath(self.interpreter))
        objects = tuple((item.elf.path, item.stamp, item.aliases, self._of_torch(item.elf)) for item in self.objects)
        asked = (self.root, self.on_disk, self.interpreter, self.torch_version)
        return (
            *asked, host, objects, dict(self.folders), options.machine, options.library_path, options.assume_driver
        )  # fmt: skip

    def outside_torch(self) -> list[ElfFacts]:
        """The objects that the distribution of torch does not own."""
        return [item.elf for item in self.objects if not self._of_torch(item.elf)]

    def _of_torch(self, facts: ElfFacts) -> bool:
        return facts.path[len(self.root) + 1 :] in self.torch_files


@dataclass(frozen=True, slots=True)
class Answers:
    """The loader's answers. ``resolutions`` run in parallel with the question's objects."""

    process: ProcessState
    resolutions: tuple[Resolution, ...]
    after_siblings: Mapping[str, tuple[Resolution, tuple[str, ...]]]
    """For an object that fails alone and loads once libraries of the target are loaded: that verdict, and their
    paths."""
    assumed_driver: tuple[str, ...]
    sonames: Mapping[str, str]
    """Path → soname of every object that took part, the host's included."""
    needed_of_torch: Mapping[str, tuple[bytes, ...]]
    """Path of an object → the names of torch that it needs and that nothing else in the target defines."""


def ask(question: Question) -> tuple[Answers, Files]:
    """Ask the loader; with the files, which know what was looked at outside the target."""
    objects = [item.elf for item in question.objects]
    aliases = {alias: item.elf.path for item in question.objects for alias in item.aliases}
    files = Files(objects, aliases, question.folders, question.root, question.on_disk)
    for item in question.objects:
        if item.identity:
            files.identify(item.elf, item.identity)
    loader = Loader(files, question.options)
    state = prepare(loader, question.interpreter, [facts.path for facts in objects], question.torch_version)
    resolutions = loader.resolve(objects)
    answers = Answers(
        process=state,
        resolutions=tuple(resolutions),
        after_siblings=_after_siblings(loader, objects, resolutions),
        assumed_driver=tuple(sorted(loader.assumed_driver)),
        sonames=files.sonames(),
        needed_of_torch=names_of_torch(question.outside_torch()),
    )
    return answers, files


def _after_siblings(
    loader: Loader, objects: Sequence[ElfFacts], resolutions: Sequence[Resolution]
) -> dict[str, tuple[Resolution, tuple[str, ...]]]:
    """Objects that load once other objects of the target, which load themselves, have been loaded."""
    by_name = {facts.soname or os.path.basename(facts.path): facts for facts in objects}
    loads = {resolution.path for resolution in resolutions if resolution.verdict is Verdict.LOADS}
    helped: dict[str, tuple[Resolution, tuple[str, ...]]] = {}
    for facts, resolution in zip(objects, resolutions, strict=True):
        siblings: list[ElfFacts] = []
        answer = resolution
        while answer.missing:
            more = [by_name[gap.library] for gap in answer.missing if gap.library in by_name]
            fresh = [item for item in more if item.path in loads and item not in siblings]
            if not fresh:
                break
            siblings += fresh
            answer = loader.resolve_after(facts, siblings)
        if siblings and answer.verdict is Verdict.LOADS:
            helped[facts.path] = (answer, tuple(item.path for item in siblings))
    return helped
