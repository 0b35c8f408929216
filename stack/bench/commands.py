"""The measuring actions of ``cu130-stack bench``: which server, which plan, which load generator, where to."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from abi_checks.errors import SourceError, UsageError
from stack.bench import prompts
from stack.bench.answers import answer
from stack.bench.environment import fingerprint
from stack.bench.generator import Generator
from stack.bench.measure import Arm, Recorder, measure_arms
from stack.bench.plan import Plan
from stack.bench.plan import serial as serial_plan
from stack.bench.plan import sweep as sweep_plan
from stack.bench.schema import BenchResult, load
from stack.bench.server import ServerApi
from stack.definition import stack_names
from stack.prefix import StackFolder, default_prefix


def serial(options: argparse.Namespace) -> int:
    """One stream, many times."""
    plan = serial_plan(
        options.runs,
        options.warmups,
        options.output_tokens,
        _prompts(options.prompts),
        options.level_timeout,
        options.backend,
    )
    with _open_arm(options, options.action) as arm:
        return _exit_code(_record(options, plan, [arm], options.resume))


def sweep(options: argparse.Namespace) -> int:
    """Every level, in rounds."""
    with _open_arm(options, options.arm or options.profile) as arm:
        return _exit_code(_record(options, _sweep_plan(options), [arm], options.resume))


def crossover(options: argparse.Namespace) -> int:
    """The answer from result files, or from two servers measured now, run about."""
    urls = (options.baseline_url, options.speculative_url)
    if any(urls) and (not all(urls) or options.result_files):
        raise UsageError("give result files, or both --baseline-url and --speculative-url")
    if all(urls):
        names = ("baseline", "eagle3")
        arms = [Arm(name, ServerApi(url), options.tokenizer) for name, url in zip(names, urls, strict=True)]
        results = _record(options, _sweep_plan(options), arms, None)
    elif len(options.result_files) >= 2:
        results = [load(path) for path in options.result_files]
    else:
        raise UsageError("needs the baseline's result and at least one speculative one, or the URLs of two servers")
    validated = load(options.validate) if options.validate else None
    return answer(results, validated, options.accept_length, options.results)


@contextmanager
def _open_arm(options: argparse.Namespace, name: str) -> Iterator[Arm]:
    """The server to measure: the one at --url, or one that is booted for it and ended afterwards."""
    if not options.url:
        raise UsageError("give --url of a running server")
    yield Arm(name, ServerApi(options.url), options.tokenizer)


def _record(options: argparse.Namespace, plan: Plan, arms: Sequence[Arm], resume: Path | None) -> list[BenchResult]:
    resumed = load(resume) if resume else None
    environment = _environment(options)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    recorders = []
    for arm in arms:
        arm.api.require()
    with TemporaryDirectory() as scratch, Generator(environment / "bin" / "python", Path(scratch)) as generator:
        for arm in arms:
            local = urlsplit(arm.api.url).hostname in ("127.0.0.1", "localhost", "::1")
            path = resume or options.results / f"{stamp}-{arm.name}.json"
            fingerprinted = fingerprint(environment, local)
            recorders.append(Recorder(arm, plan, generator, path, fingerprinted, _say, resumed))
            _say(f"{arm.name}: {arm.api.url} → {path}")
        return measure_arms(recorders, plan)


def _environment(options: argparse.Namespace) -> Path:
    """The environment whose load generator is used: --env, or the stack's current build."""
    if options.env:
        if not (options.env / "bin" / "python").exists():
            raise UsageError(f"{options.env}: is no environment (it has no bin/python)")
        return Path(options.env)
    prefix = (options.prefix or default_prefix()).absolute()
    for name in [options.stack] if options.stack else stack_names():
        if build := StackFolder(prefix / name).current:
            return build.environment
    raise SourceError(
        f"{prefix}: no stack is in use there. Build one with `cu130-stack build`, or name an environment with --env"
    )


def _sweep_plan(options: argparse.Namespace) -> Plan:
    chosen = _prompts(options.prompts)
    return sweep_plan(
        options.levels, options.rounds, options.output_tokens, chosen, options.level_timeout, options.backend
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


def _say(text: str) -> None:
    print(text, flush=True)
