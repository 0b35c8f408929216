"""Making a lock from a definition: uv resolves, and its answer is put into the normal form of a lock file."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from abi_checks.errors import SourceError, UserError
from stack.definition import DirectWheel, StackDefinition
from stack.lockfile import Lock, parse_distributions, read_lock
from stack.lockrules import refusals
from stack.uv import run_uv

RESOLVE_SECONDS = 300.0


def inputs_digest(definition: StackDefinition, python: str) -> str:
    """The digest of everything in the definition that decides what the lock contains."""
    inputs = {
        "python": python,
        "as_of": definition.as_of.isoformat(),
        "platform": definition.platform,
        "requirements": [pin.requirement for pin in definition.requirements],
        "overrides": [pin.requirement for pin in definition.overrides],
        "wheels": [
            [wheel.name, wheel.version, wheel.requires_python, wheel.requires_dist, file.url, file.sha256]
            for wheel in definition.wheels
            for file in [wheel.file_for(python)]
        ],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def make_lock(definition: StackDefinition, python: str) -> Lock:
    """Resolve the definition for a Python such as ``3.12``. Nothing is written.

    :raises SourceError: uv could not resolve it; uv's message is part of the error
    :raises UserError: the resolution is one that :mod:`stack.lockrules` refuses
    """
    definition.check_python(python)
    with tempfile.TemporaryDirectory(prefix="cu130-stack-lock-") as name:
        folder = Path(name)
        direct = [
            f"{wheel.name} @ {wheel.file_for(python).url}#sha256={wheel.file_for(python).sha256}"
            for wheel in definition.wheels
        ]
        (folder / "stack.in").write_text(
            "\n".join([*(pin.requirement for pin in definition.requirements), *direct, ""])
        )
        (folder / "overrides.in").write_text("".join(f"{pin.requirement}\n" for pin in definition.overrides))
        (folder / "uv.toml").write_text("".join(_metadata_statement(wheel) for wheel in definition.wheels))
        result = run_uv(
            [
                *("pip", "compile", "stack.in", "--override", "overrides.in"),
                *("--python-version", python, "--python-platform", definition.platform, "--only-binary", ":all:"),
                # An instant, not a day: uv would read a day in the time zone of this machine.
                *("--exclude-newer", f"{definition.as_of + timedelta(days=1)}T00:00:00Z"),
                *("--generate-hashes", "--no-header", "--no-emit-index-url", "--quiet"),
                *("--annotation-style", "line"),
            ],
            folder=folder,
            timeout=RESOLVE_SECONDS,
        )
    if result.returncode:
        raise SourceError(
            f"{definition.name} could not be resolved for Python {python}; uv says:\n{result.messages.rstrip()}"
        )
    distributions = parse_distributions(result.output, f"uv's resolution of {definition.name}")
    lock = Lock(definition.name, python, inputs_digest(definition, python), distributions)
    refuse(definition, lock, _required_by(result.output))
    return lock


def current_lock(definition: StackDefinition, python: str) -> Lock:
    """The committed lock, refused if it is not one of this definition as it stands now.

    :raises UsageError: no wheels for this Python, or no readable lock
    :raises UserError: a lock of another state of the definition, or one that :mod:`stack.lockrules` refuses
    """
    definition.check_python(python)
    path = definition.lock_path(python)
    lock = read_lock(path)
    if (lock.stack, lock.python, lock.inputs) != (definition.name, python, inputs_digest(definition, python)):
        raise UserError(
            f"{path}: was made from another state of {definition.path}; make it again with `cu130-stack lock`"
        )
    refuse(definition, lock)
    return lock


def refuse(definition: StackDefinition, lock: Lock, required_by: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Raise for a lock that must not be used; ``required_by`` are the distributions that require another, if known.

    :raises UserError: naming every reason
    """
    if reasons := refusals(definition, lock, required_by or {}):
        raise UserError("\n  ".join([f"the lock of {definition.name} for Python {lock.python} is refused:", *reasons]))


def differences(old: Lock, new: Lock) -> list[str]:
    """What differs between two locks of one stack, one text a distribution."""
    before, after = ({item.name: item for item in lock.distributions} for lock in (old, new))
    found = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            found.append(f"{name}: {'added' if a is None else 'removed'}")
        elif a != b:
            found.append(
                f"{name}: {a.version} → {b.version}" if a.version != b.version else f"{name} {a.version}: other files"
            )
    if not found and old.text != new.text:
        found.append("made from another state of the definition, with the same result")
    return found


def _required_by(resolution: str) -> dict[str, tuple[str, ...]]:
    """Distribution → those that require it, by uv's annotations; the definition itself is left out."""
    found, name = {}, ""
    for line in resolution.splitlines():
        if entry := re.match(r"([A-Za-z0-9._-]+)(?:==| @ )", line):
            name = entry[1]
        elif via := re.match(r"\s+# via (.*)", line):
            found[name] = tuple(one for one in via[1].split(", ") if not one.startswith("-"))
    return found


def _metadata_statement(wheel: DirectWheel) -> str:
    lines = ["[[dependency-metadata]]", f"name = {json.dumps(wheel.name)}", f"version = {json.dumps(wheel.version)}"]
    if wheel.requires_python:
        lines.append(f"requires-python = {json.dumps(wheel.requires_python)}")
    lines.append(f"requires-dist = {json.dumps(wheel.requires_dist)}")
    return "\n".join(lines) + "\n"
