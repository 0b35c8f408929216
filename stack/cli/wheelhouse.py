"""``cu130-stack wheelhouse``: everything that a host without a network needs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from stack.availability import parse_mirrors
from stack.cli.options import add_mirror
from stack.definition import load_definition, stack_names
from stack.interpreters import DEFAULT_PYTHON
from stack.lock import current_lock
from stack.progress import Progress
from stack.transfer import FILE_NAME
from stack.wheelhouse import make_wheelhouse, parse_size, read_without


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    names = ", ".join(stack_names())
    parser.add_argument("--stack", required=True, metavar="NAME", help=f"one of {names}, or the path of a definition")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where to put it; a second run resumes")
    parser.add_argument("--python", metavar="X.Y", default=DEFAULT_PYTHON, help="the target's; default: %(default)s")
    parser.add_argument("--split", type=parse_size, metavar="SIZE", help="make parts of this size, such as 60M")
    parser.add_argument(
        "--without",
        type=Path,
        metavar="LIST",
        help="leave out the wheels in this list: file names, or SHA256SUMS lines",
    )
    add_mirror(parser)


def run(options: argparse.Namespace) -> int:
    """Make it, and say what to do with it."""
    start = time.monotonic()
    definition = load_definition(options.stack)
    lock = current_lock(definition, options.python)
    made = make_wheelhouse(
        definition,
        lock,
        options.out,
        split=options.split,
        without=read_without(options.without) if options.without else {},
        mirrors=parse_mirrors(options.mirror),
        progress=Progress(Console()),
    )
    seconds = time.monotonic() - start
    got = made.fetched
    rate = f" ({got.bytes / 1e6 / seconds:.0f} MB/s over all)" if got.bytes else ""
    print(f"{got.files} files fetched, {got.bytes / 2**30:.2f} GiB in {seconds:.1f} s{rate}; {got.kept} were there")
    if made.without:
        print(f"{made.without} wheels left out, listed in WITHOUT")
    where = f"{made.parts} parts in {options.out}" if made.parts else str(options.out)
    print(f"wheelhouse of {definition.name} for Python {lock.python}: {where}")
    print(f"On the target: python3 {FILE_NAME}; INSTALL has the steps")
    return 0
