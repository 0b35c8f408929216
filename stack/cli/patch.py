"""``cu130-stack patch``: apply, revert and show the patches of an installed environment."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.patching import engine
from stack.patching.environment import open_environment
from stack.patching.series import load_all
from stack.patching.status import BROKEN, PatchStatus, State


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the four actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    texts = {
        "apply": "apply the named patches; with no names, those that are on by default",
        "revert": "revert the named patches; with no names, all that are applied",
        "status": "say of each patch whether the environment carries it",
        "diff": "print the diffs of the named patches; with no names, of those that are applied",
    }
    for name, text in texts.items():
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument("environment", type=Path, metavar="ENV", help="a virtual environment, or a build's folder")
        if name != "status":
            action.add_argument("names", nargs="*", metavar="PATCH", help="names as 'status' prints them")


def run(options: argparse.Namespace) -> int:
    """Exit code 0; of status 1 where a file of a patch is half applied, edited by hand, missing or of another build."""
    environment = open_environment(options.environment)
    all_series = load_all()
    if options.action == "diff":
        statuses = engine.status(environment, all_series)
        if options.names:
            _print_diffs([engine.find(statuses, name, all_series) for name in options.names])
        else:
            _print_diffs([status for status in statuses if status.state is State.APPLIED])
        return 0
    if options.action == "status":
        statuses = engine.status(environment, all_series)
        for status in statuses:
            print(_line(status))
        if not statuses:
            print("no installed distribution has patches")
        return 1 if any(status.state in BROKEN for status in statuses) else 0
    if options.action == "apply":
        outcome = engine.apply(environment, all_series, options.names)
        print(f"applied {', '.join(outcome.changed)}" if outcome.changed else "nothing to apply")
    else:
        outcome = engine.revert(environment, all_series, options.names)
        print(f"reverted {', '.join(outcome.changed)}" if outcome.changed else "nothing to revert")
    for status in outcome.statuses:
        print(f"{status.state:15} {status.name}")
    return 0


def _line(status: PatchStatus) -> str:
    switch = "on by default" if status.default else "off by default"
    releases = ", ".join(f"{part.distribution} {part.version}" for part in status.parts)
    text = f"{status.state:15} {status.name} ({releases}; {switch}): {status.parts[0].summary}"
    return f"{text}\n{'':15} {status.detail}" if status.detail else text


def _print_diffs(statuses: list[PatchStatus]) -> None:
    for status in statuses:
        for part in status.parts:
            print(f"# {status.state}: {status.name}, {part.distribution} {part.version}")
            print(part.diff, end="")
