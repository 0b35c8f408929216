"""The measuring actions of ``cu130-stack bench``: which server, which plan, which load generator, where to."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from abi_checks.errors import SourceError, UsageError
from stack.bench import prompts
from stack.bench.aiperf import Aiperf, default_environment, require_environment
from stack.bench.answers import advice_for, answer
from stack.bench.compare import differing_settings
from stack.bench.environment import fingerprint
from stack.bench.generator import Engine, Generator
from stack.bench.measure import Arm, Recorder, measure_arms
from stack.bench.plan import Plan
from stack.bench.plan import serial as serial_plan
from stack.bench.plan import sweep as sweep_plan
from stack.bench.schema import BenchResult, Server, load
from stack.bench.server import ServerApi
from stack.cli.boot import planned_boot
from stack.cli.options import chosen_prefix
from stack.serve.boot import running
from stack.serve.gpu import require_free, visible_gpus
from stack.serve.plan import profile_options, stack_environment
from stack.serve.ports import HOST
from stack.serve.report import report_text

_GRAPH_SIZES = re.compile(r"(--)?cuda-graph-bs\b|(--)?cuda-graph-config\b|(--)?disable-cuda-graph\b")
SPECULATIVE_DEFAULT = 48
"""Requests that SGLang runs at once with speculation unless told otherwise (0.5.9 and later)."""


def serial(options: argparse.Namespace) -> int:
    """One stream, many times."""
    plan = serial_plan(
        options.runs,
        options.warmups,
        options.output_tokens,
        _prompts(options.prompts),
        options.level_timeout,
        _backend(options),
    )
    return _exit_code([_measure_one(options, plan, options.action, options.profile)])


def sweep(options: argparse.Namespace) -> int:
    """Every level, in rounds."""
    return _exit_code([_measure_one(options, _sweep_plan(options), options.arm or options.profile, options.profile)])


def crossover(options: argparse.Namespace) -> int:
    """The answer from result files, from two servers measured now and run about, or from two boots and a third."""
    urls = (options.baseline_url, options.speculative_url)
    if any(urls) and (not all(urls) or options.result_files):
        raise UsageError("give result files, or both --baseline-url and --speculative-url")
    if len(options.result_files) == 1:
        raise UsageError("needs the baseline's result and at least one speculative one, or none to measure both")
    validated = load(options.validate) if options.validate else None
    if options.result_files:
        results = [load(path) for path in options.result_files]
    elif all(urls):
        arms = [
            Arm(name, ServerApi(url), options.tokenizer) for name, url in zip(("baseline", "eagle3"), urls, strict=True)
        ]
        arms[0].api.require()
        arms[1].api.require()
        _require_same((arms[0].name, arms[0].api.describe()), arms[1], options.vary)
        results = _record(options, _sweep_plan(options), arms, None)
    else:
        plan = _sweep_plan(options)
        results = [_measure_one(options, plan, "baseline", "baseline")]
        options = _with_graphs_of(results[0], options)
        name = options.speculative_profile
        results.append(_measure_one(options, plan, name, name, results[0]))
        validated = validated or _third_run(options, plan, results)
    return answer(results, validated, options.accept_length, options.results, options.vary)


def _with_graphs_of(result: BenchResult, options: argparse.Namespace) -> argparse.Namespace:
    """The options with the captured graph sizes of a server that was measured, unless the user names sizes.

    Left to itself SGLang captures more sizes with speculation than without, and a batch of 5 would be padded to 8 in
    one arm alone.
    """
    sizes = json.loads(result.server.settings.get("cuda_graph_bs", "null"))
    if not sizes or any(_GRAPH_SIZES.match(change) for change in options.option):
        return options
    stack = stack_environment(chosen_prefix(options), options.stack, options.env)[0]
    names = dict(profile_options(stack, options.speculative_profile, ()))
    # The profiles name the largest size in their release's words: --cuda-graph-max-bs, or --cuda-graph-max-bs-decode.
    suffix = "-decode" if "cuda-graph-max-bs-decode" in names else ""
    changed = argparse.Namespace(**vars(options))
    changed.option = [*options.option, f"cuda-graph-bs{suffix}={' '.join(map(str, sizes))}"]
    return changed


def _third_run(options: argparse.Namespace, plan: Plan, results: Sequence[BenchResult]) -> BenchResult | None:
    """The adaptive server that follows from two arms, measured; None where no configuration follows."""
    path, words = advice_for(results[0], results[1], options.results, options.vary)
    if path is None:
        return None
    _say(f"the setting that follows is in {path}; measuring it")
    changed = argparse.Namespace(**vars(options))
    changed.option = [*options.option, *words]
    return _measure_one(changed, plan, "adaptive", options.speculative_profile, results[0])


def _measure_one(
    options: argparse.Namespace, plan: Plan, name: str, profile: str, beside: BenchResult | None = None
) -> BenchResult:
    """One arm; it is not measured at all where it could not be compared with the result ``beside``."""
    with _open_arm(options, name, profile, max(plan.levels)) as arm:
        if beside:
            _require_same((beside.arm, beside.server), arm, options.vary)
        return _record(options, plan, [arm], getattr(options, "resume", None))[0]


def _require_same(first: tuple[str, Server], arm: Arm, vary: Sequence[str]) -> None:
    differing = differing_settings(first, (arm.name, arm.api.describe()), vary)
    if differing:
        raise UsageError(
            f"'{first[0]}' and '{arm.name}' do not run with the same settings, so nothing is measured:\n"
            + "\n".join(differing)
            + "\nstart both with equal settings (--option for servers booted here), or name one with --vary NAME"
        )


@contextmanager
def _open_arm(options: argparse.Namespace, name: str, profile: str, concurrency: int) -> Iterator[Arm]:
    """The server to measure: the one at --url, or one that is booted for it and ended afterwards."""
    if url := getattr(options, "url", None):
        yield Arm(name, ServerApi(url), options.tokenizer)
        return
    gpus = visible_gpus(options.tp)
    if not options.share_gpu:
        require_free(gpus)
    chosen = argparse.Namespace(**vars(options))
    chosen.option = [f"max-running-requests={max(concurrency, SPECULATIVE_DEFAULT)}", "enable-metrics", *options.option]
    # The server inherits it and then tells how long its own steps take, which the prediction needs.
    os.environ.setdefault("SGLANG_RECORD_STEP_TIME", "1")
    stack, python = stack_environment(chosen_prefix(options), options.stack, options.env)
    planned = planned_boot(chosen, profile, stack, python)
    _say(f"{name}: log {planned.log}")
    with running(planned, partial(_boot_says, name)) as report:
        if not report.passed:
            raise SourceError(f"the server of arm '{name}' cannot be measured:\n{report_text(report)}")
        api = ServerApi(f"http://{HOST}:{planned.launch.port}")
        yield Arm(name, api, options.tokenizer or str(planned.launch.model), asdict(report))


def _record(options: argparse.Namespace, plan: Plan, arms: Sequence[Arm], resume: Path | None) -> list[BenchResult]:
    resumed = load(resume) if resume else None
    for arm in arms:
        arm.api.require()
    python = stack_environment(chosen_prefix(options), options.stack, options.env)[1]
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    recorders = []
    with TemporaryDirectory() as scratch, _engine(options, python, Path(scratch)) as generator:
        for arm in arms:
            local = urlsplit(arm.api.url).hostname in ("127.0.0.1", "localhost", "::1")
            path = resume or options.results / f"{stamp}-{arm.name}.json"
            environment = fingerprint(python.parent.parent, local)
            recorders.append(Recorder(arm, plan, generator, path, environment, _say, resumed))
            _say(f"{arm.name}: {arm.api.url} → {path}")
        return measure_arms(recorders, plan)


@contextmanager
def _engine(options: argparse.Namespace, python: Path, scratch: Path) -> Iterator[Engine]:
    if options.engine == "aiperf":
        yield Aiperf(require_environment(options.aiperf_env or default_environment()), scratch)
        return
    with Generator(python, scratch) as generator:
        yield generator


def _backend(options: argparse.Namespace) -> str:
    return "aiperf" if options.engine == "aiperf" else str(options.backend)


def _sweep_plan(options: argparse.Namespace) -> Plan:
    chosen = _prompts(options.prompts)
    return sweep_plan(
        options.levels, options.rounds, options.output_tokens, chosen, options.level_timeout, _backend(options)
    )


def _prompts(name: str) -> prompts.Prompts:
    match name:
        case "text":
            return prompts.packaged()
        case "random-ids":
            return prompts.random_ids()
        case _:
            return prompts.from_file(Path(name))


def _exit_code(results: Sequence[BenchResult]) -> int:
    """1 when a level has no run that may be averaged, since the question asked of it has no answer."""
    empty = [(r.arm, level) for r in results for level in r.plan.levels if not r.usable(level)]
    for arm, level in empty:
        _say(f"{arm}: no usable run at C={level}")
    return 1 if empty else 0


def _boot_says(name: str, text: str) -> None:
    _say(f"{name}: {text}")


def _say(text: str) -> None:
    print(text, flush=True)
