"""Carry a plan out on one server and keep what came of it, run by run, so that nothing is lost to an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError, UsageError
from stack.bench.checks import Observed, judge
from stack.bench.generator import Engine, Order
from stack.bench.plan import Plan
from stack.bench.schema import BenchResult, Environment, Run, Server, save
from stack.bench.server import LoadSampler, ServerApi, acceptance

IDLE_LIMIT_S = 60.0
WARM_UP_TOKENS = 32
"""Answers of a warm-up are this long at most: what a server does once for a batch size it does in the first steps."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A server under test. ``tokenizer`` is a folder the generator reads, or "" to take the one the server names."""

    name: str
    api: ServerApi
    tokenizer: str = ""
    boot_report: dict[str, Any] | None = None


class Recorder:
    """Measures one arm's runs and writes its result file after each of them."""

    def __init__(
        self,
        arm: Arm,
        plan: Plan,
        generator: Engine,
        path: Path,
        environment: Environment,
        say: Callable[[str], None],
        resumed: BenchResult | None = None,
    ) -> None:
        self._arm, self._plan, self._generator, self._path, self._say = arm, plan, generator, path, say
        arm.api.require()
        server = arm.api.describe(arm.boot_report)
        if resumed:
            _require_same(resumed, plan, server, path)
        # What a server has timed before it is measured are the first steps of its life, which are slow.
        server = replace(server, step_times=resumed.server.step_times if resumed else ())
        self.result = BenchResult(
            arm=arm.name,
            origin="measured",
            created=resumed.created if resumed else _now(),
            complete=False,
            plan=plan.record(),
            environment=environment,
            server=server,
            # A run that lost its server or its time is made again; so is anything else that was kept apart.
            runs=tuple(run for run in resumed.runs if run.usable) if resumed else (),
        )

    def warm_up(self) -> None:
        """Short runs that are not kept, one wave at every level: kernels are compiled or tuned for a batch size when it
        is first met, also after the server has said that it is ready.
        """
        for _ in range(self._plan.warmups):
            for level in sorted(self._plan.levels, reverse=True):
                run = self._one(None, level)
                self._say(f"{self._arm.name}: warm-up at C={level}: {_brief(run)}")
                self._stop_if_dead()

    def measure(self, number: int, level: int) -> None:
        """One run, unless a resumed result already holds it; raises when the server is gone afterwards."""
        if any(run.round == number and run.concurrency == level for run in self.result.runs):
            return
        run = self._one(number, level)
        runs = (*self.result.runs, run)
        server = self.result.server
        if sum(other.round == number for other in runs) == len(self._plan.levels):
            # So that a sweep cut off later still has a prediction beside it; none are told by a server that has died.
            server = replace(server, step_times=self._arm.api.describe().step_times or server.step_times)
        self.result = replace(self.result, runs=runs, server=server)
        save(self.result, self._path)
        self._say(f"{self._arm.name}: round {number + 1} C={level}: {_brief(run)}")
        self._stop_if_dead()

    def finish(self) -> BenchResult:
        """Mark the result complete."""
        self.result = replace(self.result, complete=True)
        save(self.result, self._path)
        return self.result

    def _one(self, number: int | None, level: int) -> Run:
        """One run of a round, or of the warm-up (None)."""
        api, plan = self._arm.api, self._plan
        if not api.wait_idle(IDLE_LIMIT_S):
            raise SourceError(
                f"{api.url}: requests are still running {IDLE_LIMIT_S:.0f} s after the last run; "
                "end the other clients (or restart the server) and go on with --resume"
            )
        flushed = api.flush()
        before, started = api.counters(), _now()
        requests, tokens = plan.requests_at(level), plan.output_tokens
        seed = plan.seed + 1 + (number or 0) * len(plan.levels) + plan.levels.index(level)
        if number is None:
            requests, tokens, seed = level, min(tokens, WARM_UP_TOKENS), seed + 10_000
        order = Order(
            url=api.url,
            backend=plan.backend,
            model=api.model(),
            tokenizer=self._arm.tokenizer,
            prompts=plan.prompts,
            concurrency=level,
            requests=requests,
            output_tokens=tokens,
            seed=seed,
            limit_s=plan.level_timeout_s,
        )
        with LoadSampler(api, self._generator.cpu_seconds) as sampler:
            ran = self._generator.run(order)
        after = api.counters()
        limit = self.result.server.settings.get("effective_max_running_requests")
        seen = Observed(
            acceptance=acceptance(before, after, requests, api.average_acceptance() if flushed else None),
            load=sampler.load(),
            client_cpu=sampler.client_cpu(),
            server_tokens=after.tokens - before.tokens if before and after else None,
            running_limit=int(limit) if limit else None,
            server_alive=api.alive(),
        )
        return judge(
            ran,
            seen,
            concurrency=level,
            round_number=-1 if number is None else number,
            started=started,
            requests=requests,
            output_tokens=tokens,
            limit_s=plan.level_timeout_s,
            backend=plan.backend,
        )

    def _stop_if_dead(self) -> None:
        if not self._arm.api.alive():
            raise SourceError(
                f"{self._arm.api.url}: the server of arm '{self._arm.name}' died during the measurement; "
                f"what was measured is in {self._path}, go on with --resume {self._path} once it is up again"
            )


def measure_arms(recorders: list[Recorder], plan: Plan) -> list[BenchResult]:
    """Run a plan on servers that are up at the same time, alternating between them level by level."""
    for recorder in recorders:
        recorder.warm_up()
    for turn, (number, level) in enumerate(plan.order()):
        for recorder in recorders if turn % 2 == 0 else reversed(recorders):
            recorder.measure(number, level)
    return [recorder.finish() for recorder in recorders]


def _require_same(resumed: BenchResult, plan: Plan, server: Server, path: Path) -> None:
    if resumed.plan != plan.record():
        raise UsageError(
            f"{path}: was measured by another plan ({resumed.plan}); resume with the same options, or start anew"
        )
    changed = sorted(
        name
        for name in {*resumed.server.settings, *server.settings}
        if resumed.server.settings.get(name) != server.settings.get(name) and name != "max_total_num_tokens"
    )
    if changed:
        raise UsageError(
            f"{path}: the server's settings changed since ({', '.join(changed)}): "
            "its runs can't be continued; start the server as before, or start anew"
        )


def _brief(run: Run) -> str:
    length = f", accept length {run.acceptance.length:.2f}" if run.acceptance else ""
    text = f"{run.loaded_throughput:.1f} tok/s{length}"
    return (
        text
        + "".join(f"\n    kept apart: {why}" for why in run.rejected)
        + "".join(f"\n    note: {n}" for n in run.notes)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
