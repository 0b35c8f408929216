"""Is B better than A? Settings first, then numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from abi_checks.errors import UsageError
from stack.bench.schema import BenchResult, Server
from stack.bench.server import MUST_MATCH
from stack.bench.stats import Effect, bootstrap_median, effects


@dataclass(frozen=True, slots=True)
class Level:
    """Both arms at one concurrency; medians of output tokens per second with bootstrap intervals."""

    concurrency: int
    runs: tuple[int, int]
    medians: tuple[float, float]
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None]
    effect: Effect

    @property
    def verdict(self) -> str:
        """better, worse, or no difference shown at this n."""
        if self.effect.side:
            return "better" if self.effect.side > 0 else "worse"
        return f"no difference shown at n={self.runs[0]} and {self.runs[1]}"


def require_comparable(first: BenchResult, second: BenchResult, vary: Sequence[str] = ()) -> None:
    """Raise :class:`UsageError` when settings outside ``vary`` differ that decide what a figure means."""
    differing = differing_settings((first.arm, first.server), (second.arm, second.server), vary)
    plans = (first.plan, second.plan)
    for name in ("output_tokens", "prompts", "backend"):
        values = [getattr(plan, name) for plan in plans]
        if values[0] != values[1]:
            differing.append(f"  {name}: {values[0]!r} in '{first.arm}', {values[1]!r} in '{second.arm}'")
    gpus = [sorted(gpu.name for gpu in result.environment.gpus) for result in (first, second)]
    if gpus[0] != gpus[1]:
        differing.append(f"  GPUs: {gpus[0]} under '{first.arm}', {gpus[1]} under '{second.arm}'")
    if differing:
        raise UsageError(
            "the two results were not measured under the same settings, so no number is compared:\n"
            + "\n".join(differing)
            + "\nmeasure again with equal settings, or name the setting under test with --vary NAME"
        )


def differing_settings(first: tuple[str, Server], second: tuple[str, Server], vary: Sequence[str] = ()) -> list[str]:
    """One line a setting outside ``vary`` in which two servers, each with the name of its arm, are not alike.

    A setting that only one of the two tells counts as different: it was not shown to be equal.
    """
    unknown = [name for name in vary if name not in MUST_MATCH]
    if unknown:
        raise UsageError(f"--vary {unknown[0]}: no such setting; one of {', '.join(MUST_MATCH)}")
    mine, theirs = first[1].settings, second[1].settings
    return [
        f"  {name}: {mine.get(name, 'not told')} in '{first[0]}', {theirs.get(name, 'not told')} in '{second[0]}'"
        for name in MUST_MATCH
        if name not in vary and mine.get(name) != theirs.get(name)
    ]


def throughputs(result: BenchResult, *beside: BenchResult) -> dict[int, list[float]]:
    """Throughputs of the usable runs by concurrency: those at full load where all runs of all results tell them."""
    found = {}
    for level in sorted({run.concurrency for run in result.runs}):
        full = all(run.full_load for other in (result, *beside) for run in other.usable(level))
        values = [run.loaded_throughput if full else run.throughput for run in result.usable(level)]
        found[level] = [value for value in values if value > 0]
    return found


def levels(first: BenchResult, second: BenchResult, confidence: float = 0.95) -> list[Level]:
    """Both arms at every concurrency that both have usable runs for."""
    arms = (throughputs(first, second), throughputs(second, first))
    rows = []
    for concurrency, effect in effects(arms[0], arms[1], confidence).items():
        a, b = arms[0][concurrency], arms[1][concurrency]
        intervals = (bootstrap_median(a), bootstrap_median(b))
        rows.append(Level(concurrency, (len(a), len(b)), (median(a), median(b)), intervals, effect))
    return rows


def kept_apart(result: BenchResult) -> list[str]:
    """One line a run that is averaged into nothing."""
    return [
        f"{result.arm}: round {run.round + 1} C={run.concurrency}: {'; '.join(run.rejected)}"
        for run in result.runs
        if not run.usable
    ]


def drift(result: BenchResult) -> list[float]:
    """Mean ratio of each round's throughput to the median of its level: 1.0 in every round where nothing drifts."""
    rounds: dict[int, list[float]] = {}
    for level, values in throughputs(result).items():
        runs = [run for run in result.usable(level) if run.throughput > 0]
        for run, value in zip(runs, values, strict=True):
            rounds.setdefault(run.round, []).append(value / median(values))
    return [round(fmean(rounds[number]), 4) for number in sorted(rounds)]


def render(first: BenchResult, second: BenchResult, rows: Sequence[Level]) -> str:
    """The comparison as text."""
    names = [f"{result.arm} ({result.origin}, {result.created or 'undated'})" for result in (first, second)]
    lines = [f"A = {names[0]}, B = {names[1]}"]
    lines.append(f"{'C':>4} {'A tok/s':>22} {'B tok/s':>22} {'B/A':>6} {'95 % interval':>15}  verdict on B")
    for row in rows:
        cells = [_cell(row.medians[i], row.intervals[i]) for i in (0, 1)]
        interval = row.effect.interval
        lines.append(
            f"{row.concurrency:>4} {cells[0]:>22} {cells[1]:>22} {row.effect.ratio:>6.3f} {interval:>15}  {row.verdict}"
        )
    for result in (first, second):
        lines += [f"kept apart: {line}" for line in kept_apart(result)]
        shares = drift(result)
        if len(shares) > 1:
            lines.append(f"{result.arm} by round, relative to the median: " + " ".join(f"{x:.3f}" for x in shares))
    return "\n".join(lines)


def _cell(middle: float, interval: tuple[float, float] | None) -> str:
    return f"{middle:.1f}" + (f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "")
