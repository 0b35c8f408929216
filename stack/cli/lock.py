"""``cu130-stack lock``: make the lock files, or check them."""

from __future__ import annotations

import argparse
from pathlib import Path

from abi_checks.errors import UserError
from stack.definition import load_definition, stack_names
from stack.files import write_text
from stack.lock import differences, make_lock
from stack.lockfile import Lock, read_lock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--stack", action="append", metavar="NAME", help="a stack's name or the path of a definition; default: all"
    )
    parser.add_argument("--python", metavar="X.Y", help="one Python alone; default: all that the stack has wheels for")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a lock file is not what would be made now"
    )


def run(options: argparse.Namespace) -> int:
    """Make or check each lock and say what became of it."""
    drifted = 0
    for name in options.stack or stack_names():
        definition = load_definition(name)
        for python in [options.python] if options.python else definition.pythons:
            lock = make_lock(definition, python)
            path = definition.lock_path(python)
            old = _old_lock(path) if path.exists() else None
            if old is not None and old.text == lock.text:
                print(f"{path.name}: current, {len(lock.distributions)} distributions", flush=True)
                continue
            drifted += 1
            if not options.check:
                write_text(path, lock.text)
            print(
                f"{path.name}: {'differs' if options.check else 'written'}, {len(lock.distributions)} distributions",
                flush=True,
            )
            for difference in differences(old, lock) if old else ["there was no readable lock"]:
                print(f"  {difference}")
    if options.check and drifted:
        print("The lock files are not what the definitions give now; make them again with `cu130-stack lock`.")
        return 1
    return 0


def _old_lock(path: Path) -> Lock | None:
    try:
        return read_lock(path)
    except UserError:
        return None
