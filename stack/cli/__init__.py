"""The ``cu130-stack`` command: one module a sub-command, imported only when it is asked for.

Each module has ``add_arguments(parser)`` and ``run(options) -> exit code``. A :class:`UserError` raised by either is
printed as one message, and its class decides the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from abi_checks.errors import SourceError, UserError
from abi_checks.stopping import exit_code, stoppable, words
from stack import __version__

COMMANDS = {
    "lock": "resolve the definitions into hashed lock files, or check that the committed ones are current",
    "build": "build a stack from its lock, judge it, and switch to it",
    "wheelhouse": "put everything a host without a network needs into a folder or into parts",
    "sbom": "write the bill of materials of a build (CycloneDX)",
    "diff": "compare two locks, builds or environments: versions, files, and what loads",
    "pylock": "write a stack's lock as pylock.toml for other installers",
    "image": "build a container image of a stack and judge it",
    "builds": "list the builds that lie in a prefix, with date, lock, findings and size",
    "rollback": "put an earlier build in use again, after checking it",
    "gc": "remove builds that are neither current nor previous nor used by a running process",
    "verify": "compare an installed stack with its lock and its RECORD files",
    "patch": "apply, revert or show the source patches of an installed environment",
    "contracts": "say what SGLang's source does with models, GPUs and launch options, without running it",
    "diagnose": "name the first true cause of a failure from a server log",
    "bench": "measure servers, compare results, find where speculation stops paying",
    "models": "write synthetic models whose answers and acceptance are known in advance",
    "boot": "start a server from a launch profile, question it, and judge what it answers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``cu130-stack`` and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="cu130-stack", description="Build, verify, boot and measure a CUDA 13 serving stack."
    )
    parser.add_argument("--version", action="version", version=f"cu130-stack {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        child = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            importlib.import_module(f"stack.cli.{name}").add_arguments(child)
    try:
        options = parser.parse_args(arguments)
        with stoppable():
            return int(importlib.import_module(f"stack.cli.{options.command}").run(options))
    except UserError as error:
        print(f"cu130-stack: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        # A folder that cannot be written, a disk that is full: what a command did not foresee by name.
        print(f"cu130-stack: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return SourceError.exit_code
    except KeyboardInterrupt as stopped:
        print(f"cu130-stack: {words(stopped)}", file=sys.stderr)
        return exit_code(stopped)


if __name__ == "__main__":
    sys.exit(main())
