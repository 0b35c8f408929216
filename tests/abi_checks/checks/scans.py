"""Scans made by hand, for checks that need no real file."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from abi_checks.elf_facts import ElfFacts, Symbols
from abi_checks.fatbin import FatBinaries
from abi_checks.process import ProcessState
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution
from abi_checks.torch_symbols import names_of_torch

ROOT = "/env"
SITE = "lib/python3.12/site-packages"


def make_object(path: str, *, root: str = ROOT, **facts: object) -> ElfFacts:
    """An x86-64 shared object at ``path`` below site-packages, with the given facts and no others."""
    symbols = {item.name: facts.pop(item.name) for item in fields(Symbols) if item.name in facts}
    values: dict[str, object] = {
        "path": f"{root}/{SITE}/{path}",
        "elf_class": 64,
        "little_endian": True,
        "machine": 62,
        "elf_type": 3,
        "soname": "",
        "flags_1": 0,
        "versions_defined": frozenset(),
        "has_version_definitions": False,
        "has_interpreter": False,
        "symbols": Symbols(**symbols),  # type: ignore[arg-type]
        **facts,
    }
    return ElfFacts(**{item.name: values.get(item.name, ()) for item in fields(ElfFacts)})  # type: ignore[arg-type]


def make_distribution(
    name: str,
    version: str,
    *files: str,
    requires: Sequence[str] = (),
    tags: Sequence[str] = (),
    folder: str = "",
) -> Distribution:
    """An installed distribution; ``files`` are relative to site-packages."""
    return Distribution(
        name=name,
        version=version,
        folder=f"{SITE}/{folder or name.replace('-', '_') + '-' + version}.dist-info",
        requires=tuple(requires),
        tags=tuple(tags),
        files=frozenset(f"{SITE}/{path}" for path in files),
    )


def make_scan(
    objects: Sequence[ElfFacts] = (),
    distributions: Sequence[Distribution] = (),
    device_code: Mapping[str, tuple[FatBinaries, ...]] | None = None,
    *,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    loaded: Sequence[ElfFacts] = (),
    complete: bool = True,
    root: str = ROOT,
) -> Scan:
    """A scan of an environment in which nothing was asked of the loader; ``loaded`` is what import torch has loaded."""
    of_torch = next((found.files for found in distributions if found.name == "torch"), frozenset())
    return Scan(
        label=root,
        root=root,
        complete=complete,
        objects=tuple(objects),
        resolutions=(),
        unreadable=(),
        aliases=aliases or {},
        device_code=device_code or {},
        process=ProcessState("", "", bool(loaded), (), frozenset(facts.path for facts in loaded)),
        distributions=tuple(distributions),
        assumed_driver=(),
        after_siblings={},
        sonames={facts.path: facts.soname for facts in (*objects, *loaded)},
        needed_of_torch=names_of_torch([facts for facts in objects if facts.path[len(root) + 1 :] not in of_torch]),
    )
