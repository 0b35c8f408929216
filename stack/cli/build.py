"""``cu130-stack build``: build a stack from its lock and put it in use."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from stack.availability import parse_mirrors
from stack.build import build_stack
from stack.choose import choose
from stack.cli.options import add_mirror, add_prefix, chosen_prefix
from stack.definition import PREFERRED, stack_names
from stack.prefix import StackFolder
from stack.preflight import check_disk
from stack.progress import Progress
from stack.uv import cache_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--stack",
        metavar="NAME",
        help=f"one of {', '.join(stack_names())}, or the path of a definition; default: the first of "
        f"{' and '.join(PREFERRED)} whose every wheel can be had from here",
    )
    parser.add_argument(
        "--python", metavar="X.Y", help="default: 3.12 if it is found, else another that the stack has wheels for"
    )
    add_prefix(parser)
    parser.add_argument(
        "--wheelhouse", type=Path, metavar="DIR", help="a folder of wheels to take from before anywhere else"
    )
    add_mirror(parser)


def run(options: argparse.Namespace) -> int:
    """Build, and say first and last which stack it is."""
    start = time.monotonic()
    progress = Progress(Console())
    prefix = chosen_prefix(options)
    choice = choose(options.stack, options.python, options.wheelhouse, parse_mirrors(options.mirror))
    progress.say(choice.headline)
    found = choice.availability
    folder = StackFolder(prefix / found.definition.name)
    there = folder.build(found.lock.build_name)
    if not (there.complete or there.installed_from(found.lock.sha256)):
        check_disk(found.definition, prefix, cache_folder(), found.to_download, len(found.lock.distributions))
    passed_over = {name: {item.wheel: item.reason for item in missing} for name, missing in choice.passed_over.items()}
    build = build_stack(found, folder, passed_over, progress)
    progress.say(f"in use: {folder.path / 'current' / 'env'} -> {build.folder.name} ({time.monotonic() - start:.1f} s)")
    progress.say(choice.headline)
    return 0
