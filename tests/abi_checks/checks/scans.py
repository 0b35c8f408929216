"""Scans made by hand, for checks that need no real file."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from abi_checks.elf_facts import ElfFacts
from abi_checks.fatbin import FatBinaries
from abi_checks.process import ProcessState
from abi_checks.scan import Scan
from abi_checks.sources.interface import Distribution

ROOT = "/env"
SITE = "lib/python3.12/site-packages"


def make_object(path: str, *, root: str = ROOT, **facts: object) -> ElfFacts:
    """An x86-64 shared object at ``path`` below site-packages, with the given facts and no others."""
    values: dict[str, object] = {
        "path": f"{root}/{SITE}/{path}",
        "elf_class": 64,
        "little_endian": True,
        "machine": 62,
        "elf_type": 3,
        "soname": "",
        "flags_1": 0,
        "defined": frozenset(),
        "defined_versions": {},
        "versions_defined": frozenset(),
        "has_version_definitions": False,
        "has_interpreter": False,
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
    by_path = {facts.path: facts for facts in objects}
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
        facts_of=by_path.get,
    )
