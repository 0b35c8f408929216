"""``cu130-stack builds``: what lies in a prefix."""

from __future__ import annotations

import argparse
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from abi_checks.errors import SourceError
from stack.cli.options import add_prefix, chosen_prefix
from stack.history import BuildRecord, records, stack_folders

WIDE = 240
"""Columns where there is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--stack", metavar="NAME", help="one stack alone")
    add_prefix(parser)


def run(options: argparse.Namespace) -> int:
    """Print one row a build."""
    prefix = chosen_prefix(options)
    folders = [folder for folder in stack_folders(prefix) if options.stack in (None, folder.path.name)]
    if not folders:
        raise SourceError(
            f"{prefix}: no build is there. Build one with `cu130-stack build`, or name the place: --prefix"
        )
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for heading in ("stack", "build", "built (UTC)", "lock sha256", "findings", "size", "freed by gc", "state"):
        table.add_column(heading, overflow="fold")
    for folder in folders:
        for record in records(folder):
            table.add_row(folder.path.name, *_cells(record))
    # In a file or a pipe every row stays on one line.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)
    return 0


def _cells(record: BuildRecord) -> tuple[str, ...]:
    findings = ", ".join(f"{count} {severity}" for severity, count in record.findings)
    return (
        record.build.folder.name,
        record.built.removesuffix("+00:00").replace("T", " "),
        record.lock[:12],
        findings or ("none" if record.built else ""),
        f"{record.size.total / 2**30:.2f} GiB",
        f"{record.size.own / 2**30:.2f} GiB",
        record.state,
    )
