"""``cu130-stack boot``: start a server as a profile says, question it, and judge it."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from abi_checks.errors import SourceError, UsageError
from stack.cli.options import add_prefix, chosen_prefix
from stack.files import write_text
from stack.serve import plan
from stack.serve.boot import Boot, boot, judge_url
from stack.serve.client import Client
from stack.serve.forecast import forecast
from stack.serve.gpu import driver_version, memory_by_process, require_free, visible_gpus
from stack.serve.launch import ALGORITHM
from stack.serve.ports import choose_port
from stack.serve.questions import compare_answers
from stack.serve.report import BootReport, report_text, reports_json, with_findings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_server_arguments(parser)
    parser.add_argument("--profile", default="baseline", help="launch profile of the stack (default: baseline)")
    parser.add_argument(
        "--compare",
        metavar="PROFILE",
        help="boot that profile first, with the same target, and fail where a single token of the answers differs",
    )
    parser.add_argument("--url", help="judge the server that already runs there; nothing is started or ended")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there as JSON")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which server is to be started."""
    parser.add_argument("--stack", metavar="NAME", help="default: the first stack that is in use")
    add_prefix(parser)
    parser.add_argument(
        "--env", type=Path, metavar="DIR", help="start from this environment instead of the stack's build"
    )
    parser.add_argument(
        "--models",
        default=plan.SYNTHETIC,
        metavar="DIR",
        help="a folder made by `cu130-stack models make`, the folder of any target model, or 'synthetic' (default)",
    )
    parser.add_argument("--draft", metavar="NAME", help="the draft: its name among synthetic models, else its folder")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a server option besides the profile's, or instead; NAME alone is a flag, no:NAME takes one away",
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs to spread the model over (default: 1)")
    parser.add_argument("--port", type=int, metavar="N", help="default: a free one")
    parser.add_argument(
        "--timeout", type=float, default=900.0, metavar="SECONDS", help="limit for one server (default: 900)"
    )
    parser.add_argument("--share-gpu", action="store_true", help="start even where others hold GPU memory")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="the server's output (default: a file in the temporary folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Boot, report, and exit with 1 where anything is wrong."""
    reports = [_judge_running(options)] if options.url else _boot_all(options)
    for report in reports:
        print(report_text(report))
    if options.output:
        try:
            write_text(options.output, reports_json(reports))
        except OSError as error:
            raise SourceError(f"{options.output}: the report cannot be written: {error.strerror}") from error
    return 0 if all(report.passed for report in reports) else 1


def _boot_all(options: argparse.Namespace) -> list[BootReport]:
    gpus = visible_gpus(options.tp)
    stack, python = plan.stack_environment(chosen_prefix(options), options.stack, options.env)
    reports: list[BootReport] = []
    for profile in filter(None, (options.compare, options.profile)):
        if not options.share_gpu:
            require_free(gpus)
        planned = planned_boot(options, profile, stack, python)
        _say(profile, " ".join(planned.launch.command()))
        _say(profile, f"log {planned.log}")
        report = boot(planned, partial(_say, profile))
        # Beside the outcome, never part of it: the server's own conduct decides that.
        reports.append(replace(report, findings=(*forecast(planned.launch, gpus), *report.findings)))
        if not reports[-1].passed:
            return reports
    if options.compare:
        findings = compare_answers(reports[0].answers, reports[1].answers)
        reports[1] = with_findings(reports[1], findings)
    return reports


def _say(name: str, words: str) -> None:
    print(f"{name}: {words}", flush=True)


def planned_boot(options: argparse.Namespace, profile: str, stack: str, python: Path) -> Boot:
    """The boot that the options of :func:`add_server_arguments` ask for."""
    settings = plan.profile_options(stack, profile, options.option)
    speculative = ALGORITHM in dict(settings)
    models = plan.choose_models(options.models, options.draft if speculative else None, speculative)
    launch = plan.make_launch(python, models, settings, options.tp, choose_port(options.port))
    log = options.log or Path(tempfile.mkdtemp(prefix="cu130-stack-")) / "server.log"
    return Boot(
        name=profile,
        launch=launch,
        questions=models.questions(launch.steps),
        log=(log.with_name(f"{profile}-{log.name}") if options.compare else log).absolute(),
        timeout=options.timeout,
        gpus=lambda: visible_gpus(options.tp),
        memory=lambda: memory_by_process(options.tp),
        versions=(*plan.installed_versions(python), ("driver", driver_version())),
        findings=plan.toolkit_findings(launch),
    )


def _judge_running(options: argparse.Namespace) -> BootReport:
    """The server at --url, with predictions where --models names the synthetic models that it serves."""
    if options.compare:
        raise UsageError("--url judges one server; --compare needs two, which only this command's own boots are")
    info = Client(options.url).server_info()
    models = plan.choose_models(options.models, options.draft, bool(info.get("speculative_algorithm")))
    steps = None if info.get("speculative_adaptive") else int(info.get("speculative_num_steps") or 0)
    return judge_url(options.url, models.questions(steps), options.timeout)
