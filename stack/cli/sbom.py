"""``cu130-stack sbom``: the bill of materials of a build."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from abi_checks.errors import SourceError, UserError
from stack.artifacts import lock_artifacts
from stack.cli.options import add_prefix, chosen_prefix
from stack.definition import load_definition
from stack.files import write_text
from stack.history import only_stack
from stack.lockfile import read_lock
from stack.prefix import Build
from stack.sbom import sbom_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "build", nargs="?", type=Path, metavar="BUILD", help="a build's folder; default: the one in use"
    )
    parser.add_argument("--stack", metavar="NAME", help="needed where the prefix holds several stacks")
    add_prefix(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def run(options: argparse.Namespace) -> int:
    """Write it."""
    build = _build(options)
    text = sbom_text(build, _installed_wheels(build))
    if options.output:
        write_text(options.output, text)
    else:
        print(text, end="")
    return 0


def _build(options: argparse.Namespace) -> Build:
    if options.build:
        build = Build(options.build.resolve())
    else:
        folder = only_stack(chosen_prefix(options), options.stack)
        current = folder.current
        if current is None:
            raise SourceError(f"{folder.path}: no build of it is in use; name a build's folder")
        build = current
    if not build.complete:
        raise SourceError(f"{build.folder}: is not a complete build (it has no manifest.json)")
    return build


def _installed_wheels(build: Build) -> dict[str, str]:
    """Distribution → sha256 of its wheel, as the index tells which of the locked files this platform installs."""
    lock = read_lock(build.lock)
    try:
        found = lock_artifacts(load_definition(lock.stack), lock, {})
    except UserError as error:
        print(f"hashes of single wheels are left out where the lock allows several: {error}", file=sys.stderr)
        return {}
    return {item.name: item.sha256 for item in found}
