"""The ``abi-check`` command."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from abi_checks.api import Options, check_source
from abi_checks.cache import cache_folder
from abi_checks.checks import CHECKS, CheckOptions, ContractOptions
from abi_checks.errors import SourceError, UsageError, UserError
from abi_checks.expectations import SIDECAR, Expectations, read_expectations
from abi_checks.report import text as text_report
from abi_checks.report.interface import Report
from abi_checks.stopping import exit_code, stoppable, words
from abi_checks.targets import Surroundings, find_target, parse_python


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``abi-check`` and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    gc.disable()  # the facts are millions of small objects that live to the end: collecting only costs time
    try:
        if options.explain:
            return _explain(options.explain)
        if not options.targets:
            raise UsageError("name at least one TARGET, or --explain CHECK")
        with stoppable():
            return _run(options)
    except UserError as error:
        print(f"abi-check: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stopped:
        print(f"abi-check: {words(stopped)}", file=sys.stderr)
        return exit_code(stopped)


def _run(options: argparse.Namespace) -> int:
    reports = [_judge(target, options) for target in options.targets]
    rendered = "".join(_render(report, options) for report in reports)
    if options.output:
        _write(Path(options.output), rendered)
    else:
        _show(reports, rendered, options)
    return max(report.exit_code for report in reports)


def program() -> NoReturn:
    """:func:`main` as a program of its own."""
    code = main()
    sys.stdout.flush()
    # Giving millions of objects back one by one takes longer than any check; the end of the process does it at once.
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abi-check",
        description="Say of every shared object of a target whether the dynamic loader would load it, and why not.",
        epilog="Exit codes: 0 clean, 1 findings of severity error, 2 usage, 3 a source that could not be read.",
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a virtual environment, a folder, a shared object, a wheel, a folder of wheels, a lock file, or a"
        " requirement such as sgl-kernel==0.3.21, whose wheel is read from the index without being stored",
    )
    parser.add_argument(
        "--with",
        action="append",
        default=[],
        dest="extra",
        metavar="REQUIREMENT",
        help="judge a requirement together with this one, such as torch==2.10.0 (repeatable)",
    )
    parser.add_argument(
        "--python", metavar="X.Y", help="the Python that wheels are judged for; default: the running one"
    )
    parser.add_argument("--wheelhouse", metavar="DIR", help="a folder of wheels to take a lock file's wheels from")
    parser.add_argument("--format", choices=("text", "json", "sarif", "markdown"), default="text")
    parser.add_argument("--output", metavar="FILE", help="write the report to FILE instead of standard output")
    parser.add_argument(
        "--waivers",
        metavar="FILE",
        help=f"findings to set aside; by default {SIDECAR} beside the environment, if it is there",
    )
    parser.add_argument(
        "--driver",
        choices=("assume", "require"),
        default="assume",
        help="what to think of the NVIDIA driver's libraries where this host has none",
    )
    parser.add_argument(
        "--target-sm",
        action="append",
        default=[],
        metavar="SM",
        help="a GPU architecture, such as 120, that device code must be there for (repeatable; default: this host's)",
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="CLASS", help="judge this model class of SGLang too"
    )
    parser.add_argument(
        "--launch",
        action="append",
        default=[],
        metavar="OPTION[=VALUE]",
        help="say what SGLang will do with this launch option on the target GPUs (repeatable)",
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of one tensor-parallel group; default 1")
    parser.add_argument("--link", choices=("pcie", "nvlink"), help="what joins the GPUs")
    parser.add_argument("--no-cache", action="store_true", help="read every object again, and remember nothing")
    parser.add_argument("--verbose", action="store_true", help="list information and waived findings too")
    parser.add_argument(
        "--explain", metavar="CHECK", help="say what a check looks for, how it decides, what it can't see"
    )
    return parser


def _explain(check_id: str) -> int:
    for check in CHECKS:
        if check_id in check.ids:
            print(f"{', '.join(check.ids)}\n\n{check.explanation.strip()}", flush=True)
            return 0
    known = ", ".join(sorted(check_id for check in CHECKS for check_id in check.ids))
    raise UsageError(f"there is no check {check_id!r}; the checks are: {known}")


def _judge(target: str, options: argparse.Namespace) -> Report:
    python = parse_python(options.python) if options.python else None
    wheelhouse = Path(options.wheelhouse) if options.wheelhouse else None
    found = find_target(target, Surroundings(tuple(options.extra), python, wheelhouse))
    expectations = _expectations(Path(found.source.root), options.waivers)
    return check_source(
        found.source,
        Options(
            waivers=expectations.waivers,
            checks=CheckOptions(
                expected=expectations.versions,
                target_sms=tuple(options.target_sm) or expectations.target_sms,
                contracts=_contracts(options),
            ),
            library_path=tuple(part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part),
            assume_driver=options.driver == "assume",
            only=found.only,
            cache=None if options.no_cache else cache_folder(),
        ),
    )


def _contracts(options: argparse.Namespace) -> ContractOptions:
    launch: tuple[tuple[str, bool | int | float | str], ...] = ()
    if options.launch:
        from abi_checks.checks.contracts.startup import parse_option

        launch = tuple(parse_option(text) for text in options.launch)
    nvlink = {"pcie": False, "nvlink": True}.get(options.link)
    return ContractOptions(tuple(options.model), launch, options.gpus, nvlink)


def _expectations(root: Path, given: str | None) -> Expectations:
    path = Path(given) if given else root.parent / SIDECAR
    return read_expectations(path) if given or path.is_file() else Expectations()


def _render(report: Report, options: argparse.Namespace) -> str:
    # A format's module is imported when it is asked for: start-up is a good part of a run with the scan cache.
    match options.format:
        case "json":
            from abi_checks.report import json as json_report

            return json_report.render(report)
        case "sarif":
            from abi_checks.report import sarif

            return sarif.render(report)
        case "markdown":
            from abi_checks.report import markdown

            return markdown.render(report)
    return text_report.render(report, verbose=options.verbose)


def _show(reports: Sequence[Report], rendered: str, options: argparse.Namespace) -> None:
    if options.format != "text" or not sys.stdout.isatty():
        sys.stdout.write(rendered)
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for report in reports:
        for line, style in text_report.lines(report, verbose=options.verbose):
            console.print(Text(line, style=style))


def _write(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader never sees half a report."""
    import tempfile  # here, since it takes longer to import than all of the command line

    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise SourceError(f"{path}: cannot write the report: {error.strerror}") from error
