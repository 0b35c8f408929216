"""``cu130-stack verify``: is an installed stack still what its lock says?"""

from __future__ import annotations

import argparse
import time

from abi_checks.errors import SourceError
from stack.cli.options import add_prefix, chosen_prefix
from stack.definition import stack_names
from stack.history import compare_build
from stack.prefix import StackFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--stack", metavar="NAME", help="default: every stack that is in use")
    add_prefix(parser)
    parser.add_argument("--deep", action="store_true", help="also compare the sha256 of every file")


def run(options: argparse.Namespace) -> int:
    """Compare, print each problem, and exit 1 if there is one."""
    prefix = chosen_prefix(options)
    names = [options.stack] if options.stack else [name for name in stack_names() if StackFolder(prefix / name).current]
    if not names:
        raise SourceError(
            f"{prefix}: no stack is in use there. Build one with `cu130-stack build`, or name the place with --prefix"
        )
    failed = False
    for name in names:
        build = StackFolder(prefix / name).current
        if build is None:
            raise SourceError(
                f"{prefix / name}: this stack is not in use there. Build it with `cu130-stack build --stack {name}`"
            )
        start = time.monotonic()
        found = compare_build(build, deep=options.deep)
        for problem in found.problems:
            print(f"{name}: {problem}")
        failed = failed or bool(found.problems)
        hashed = f", {found.hashed / 2**30:.1f} GiB hashed" if options.deep else ""
        verdict = f"{len(found.problems)} problems" if found.problems else "as locked"
        print(
            f"{name} ({build.folder.name}): {verdict}; {found.distributions} distributions, "
            f"{found.files} files{hashed}, {time.monotonic() - start:.1f} s"
        )
    return 1 if failed else 0
