"""A stack's lock as ``pylock.toml`` (PEP 751), with the addresses of a chosen index, for installers that read it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable

from packaging.utils import canonicalize_name

from abi_checks.errors import SourceError, UserError
from stack import __version__
from stack.artifacts import Artifact, offered_files, resolve_pylock
from stack.definition import NO_HOST, StackDefinition
from stack.lockfile import Lock


def pylock_text(definition: StackDefinition, lock: Lock, index: str | None) -> str:
    """The lock for one Python and platform; only files with a locked hash are named.

    ``index``: the address of a simple index; None for the one uv is configured to use.

    :raises UserError: a wheel that only a wheelhouse has
    :raises SourceError: the index does not have everything
    """
    for item in lock.direct:
        if item.url.startswith(NO_HOST):
            raise UserError(f"{item.name} {item.version}: only a wheelhouse has it, and a pylock.toml needs an address")
    entries = "".join(item.entry() for item in lock.indexed)
    answer = resolve_pylock(entries, lock.python, definition.platform, index) if lock.indexed else ""
    hashes = {item.name: set(item.hashes) for item in lock.distributions}
    files: dict[str, list[Artifact]] = {
        item.name: [Artifact(item.name, item.version, item.filename, item.url, None, item.hashes[0])]
        for item in lock.direct
    }
    for package in tomllib.loads(answer).get("packages", []):
        name = canonicalize_name(package["name"])
        files[name] = [item for item in offered_files(package) if item.sha256 in hashes[name]]
        if not files[name]:
            raise SourceError(f"{name} {package.get('version')}: the index offers no wheel with a locked hash")
    marker = f"sys_platform == 'linux' and platform_machine == '{definition.machine}'"
    head = [
        'lock-version = "1.0"',
        f'created-by = "cu130-stack {__version__}"',
        f'requires-python = "=={lock.python}.*"',
        f"environments = [{json.dumps(marker)}]",
    ]
    return "\n".join([*head, *(_package(name, files[name]) for name in sorted(files))])


def _package(name: str, files: Iterable[Artifact]) -> str:
    files = sorted(files, key=lambda item: item.filename)
    lines = ["", "[[packages]]", f'name = "{name}"', f'version = "{files[0].version}"']
    for item in files:
        # A JSON string is a TOML basic string.
        where = (
            f"url = {json.dumps(item.location)}" if "://" in item.location else f"path = {json.dumps(item.location)}"
        )
        size = f"size = {item.size}\n" if item.size is not None else ""
        lines += ["[[packages.wheels]]", f"name = {json.dumps(item.filename)}", where]
        lines.append(f'{size}hashes = {{sha256 = "{item.sha256}"}}')
    return "\n".join(lines) + "\n"
