"""Requirements such as ``sgl-kernel==0.3.21``, judged from the index: wheels are read over ranges, not stored."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement

from abi_checks.errors import UsageError
from abi_checks.sources.index import resolve
from abi_checks.sources.overlay import WheelsSource
from abi_checks.sources.selection import PythonVersion, running_python
from abi_checks.sources.wheel import read_wheel


def requirement_source(
    requirement: str, extras: Sequence[str] = (), python: PythonVersion | None = None
) -> WheelsSource:
    """The environment that ``requirement`` and ``extras`` would become, without their dependencies.

    Raises UsageError where a text is no requirement, SourceError where the index has no such wheel or can't be reached.
    """
    python = python or running_python()
    for text in (requirement, *extras):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(f"{text!r} is neither a file nor a requirement such as 'torch==2.9.1': {error}") from error
    links = resolve([requirement, *extras], python)
    return WheelsSource(requirement, [read_wheel(link.location, link.filename) for link in links], python)
