"""Choosing the stack to build: the one insisted on, or the first preferred one that can be had from here in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError
from stack.availability import Availability, Missing, survey
from stack.definition import PREFERRED, load_definition
from stack.interpreters import choose_interpreter
from stack.lock import current_lock
from stack.preflight import check_host, host_glibc


@dataclass(frozen=True, slots=True)
class Choice:
    """The stack to build, and the preferred ones that were passed over: name → what of it could not be had."""

    availability: Availability
    passed_over: Mapping[str, tuple[Missing, ...]]

    @property
    def headline(self) -> str:
        """Which stack it is and why, for the first and last thing a build prints."""
        found = self.availability
        lines = [f"stack {found.definition.name} for Python {found.lock.python}: {found.definition.summary}"]
        for name, missing in self.passed_over.items():
            lines.append(f"  instead of {name}, of which {len(missing)} wheels cannot be had from here:")
            lines += [f"  {line}" for line in missing_lines(missing)]
        return "\n".join(lines)


def choose(name: str | None, python: str | None, wheelhouse: Path | None, mirrors: Mapping[str, str]) -> Choice:
    """Choose the stack and say where each of its wheels comes from. Nothing is downloaded.

    :raises UsageError: an unknown stack, or a Python it has no wheels for or this machine does not have
    :raises UserError: a host on which the stack cannot run
    :raises SourceError: the stack insisted on, or every preferred one, cannot be had; with every wheel concerned
    """
    passed_over: dict[str, tuple[Missing, ...]] = {}
    for candidate in [name] if name else PREFERRED:
        definition = load_definition(candidate)
        interpreter = choose_interpreter(definition, python)
        check_host(definition, host_glibc(), interpreter.machine)
        lock = current_lock(definition, interpreter.version)
        found = survey(definition, lock, interpreter, wheelhouse, mirrors)
        if not found.missing:
            return Choice(found, passed_over)
        passed_over[definition.name] = found.missing
    raise SourceError("\n".join(_refusal(stack, missing) for stack, missing in passed_over.items()))


def missing_lines(missing: tuple[Missing, ...]) -> list[str]:
    """The wheels, grouped by why they cannot be had."""
    by_reason: dict[str, list[str]] = {}
    for item in missing:
        by_reason.setdefault(item.reason, []).append(item.wheel)
    return [
        line for reason, wheels in by_reason.items() for line in (f"  {reason}:", *(f"    {wheel}" for wheel in wheels))
    ]


def _refusal(stack: str, missing: tuple[Missing, ...]) -> str:
    lines = [f"{stack}: {len(missing)} wheels cannot be had from here", *missing_lines(missing), "Ways out:"]
    lines.append("  a wheelhouse: put these files into a folder and name it with --wheelhouse DIR")
    lines.append(
        "  a mirror of the host: --mirror https://HOST=https://MIRROR/PATH; for the package index, uv's own setting"
    )
    if stack != PREFERRED[-1]:
        lines.append(f"  another stack: --stack {PREFERRED[-1]}, which needs the package index alone")
    return "\n".join(lines)
