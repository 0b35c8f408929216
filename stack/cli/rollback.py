"""``cu130-stack rollback``: put an earlier build in use again."""

from __future__ import annotations

import argparse
import time

from stack.cli.options import add_prefix, chosen_prefix
from stack.history import only_stack, roll_back


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "to", nargs="?", metavar="TO", help="a build's name or the start of it; default: the previous one"
    )
    parser.add_argument("--stack", metavar="NAME", help="needed where the prefix holds several stacks")
    add_prefix(parser)
    parser.add_argument("--deep", action="store_true", help="also compare the sha256 of every file")


def run(options: argparse.Namespace) -> int:
    """Check the build, switch, and say what is in use now."""
    start = time.monotonic()
    folder = only_stack(chosen_prefix(options), options.stack)
    left = folder.current
    build = roll_back(folder, options.to, deep=options.deep)
    if left == build:
        print(f"{build.folder.name} is in use already, and as it was built")
    else:
        print(f"in use: {folder.path / 'current' / 'env'} -> {build.folder.name} ({time.monotonic() - start:.1f} s)")
        print(f"previous: {left.folder.name if left else 'none'}")
    return 0
