"""``cu130-stack gc``: remove builds that nobody needs."""

from __future__ import annotations

import argparse

from stack.cli.options import add_prefix, chosen_prefix
from stack.history import collect_garbage, only_stack, stack_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--stack", metavar="NAME", help="one stack alone")
    add_prefix(parser)


def run(options: argparse.Namespace) -> int:
    """Remove, and say what was removed and what was kept for a running process."""
    prefix = chosen_prefix(options)
    folders = [only_stack(prefix, options.stack)] if options.stack else stack_folders(prefix)
    count = 0
    for folder in folders:
        for removal in collect_garbage(folder, print):
            count += 1
            print(f"{folder.path.name} {removal.name}: removed, {removal.freed / 2**30:.2f} GiB freed")
    if not count:
        print("nothing to remove")
    return 0
