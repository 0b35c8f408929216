"""Does the adaptive server keep what the better of the two arms gave, at every level?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from stack.bench.compare import throughputs
from stack.bench.schema import BenchResult
from stack.bench.stats import Effect, effects

TOLERANCE = 0.05
"""Switching has a price of its own; a loss up to this share is no reason against the setting."""

KEEPS, LOSES = "keeps the better arm's throughput", "loses to the better arm"


@dataclass(frozen=True, slots=True)
class Validation:
    """The adaptive arm beside the other two at one level; output tokens per second, medians."""

    concurrency: int
    baseline: float
    speculative: float
    adaptive: float
    better: Literal["baseline", "speculative"]
    """Which of the two it is held against: the one with the higher median."""
    to_better: Effect
    """Adaptive over that arm."""
    to_speculative: Effect
    """Adaptive over the speculative arm: below 1, the server loses by not drafting, or by how it stops."""

    @property
    def verdict(self) -> str:
        """keeps it, loses, or not decided: whether it stays within the tolerance of the better arm."""
        low, high = self.to_better.low, self.to_better.high
        if low is None or high is None:
            return "not decided"
        if low >= 1 - TOLERANCE:
            return KEEPS
        return LOSES if high < 1 - TOLERANCE else "not decided"


def validate(baseline: BenchResult, speculative: BenchResult, adaptive: BenchResult) -> list[Validation]:
    """One row a level that all three results have, at 95 % a level."""
    results = (baseline, speculative, adaptive)
    arms = [throughputs(result, *results) for result in results]
    against = {"baseline": effects(arms[0], arms[2], 0.95), "speculative": effects(arms[1], arms[2], 0.95)}
    rows = []
    for level in sorted(set(against["baseline"]) & set(against["speculative"])):
        middles = [median(arm[level]) for arm in arms]
        better: Literal["baseline", "speculative"] = "baseline" if middles[0] >= middles[1] else "speculative"
        to_better, to_speculative = against[better][level], against["speculative"][level]
        rows.append(Validation(level, middles[0], middles[1], middles[2], better, to_better, to_speculative))
    return rows


def conclusion(rows: Sequence[Validation]) -> str:
    """What the rows say of the setting as a whole."""
    lost = [row for row in rows if row.verdict == LOSES]
    if not lost:
        kept = [row.concurrency for row in rows if row.verdict == KEEPS]
        if len(kept) == len(rows):
            return "the setting holds at every level measured"
        if not kept:
            return "whether the setting holds is not decided by these data"
        return f"the setting is shown to hold at {_levels(kept)}; at the others it is not decided"
    parts = []
    for arm, instead in (("baseline", "without speculation"), ("speculative", "with speculation always on")):
        levels = [row.concurrency for row in lost if row.better == arm]
        if levels:
            parts.append(f"at {_levels(levels)} a server started {instead} is faster")
    said = f"the setting does not hold: {' and '.join(parts)}"
    both = [row.concurrency for row in lost if row.better == "baseline" and row.to_speculative.side < 0]
    return f"{said}; at {_levels(both)} one that always drafts is faster, too" if both else said


def _levels(concurrencies: Sequence[int]) -> str:
    return "C = " + ", ".join(map(str, concurrencies))


def render(rows: Sequence[Validation]) -> str:
    """The rows as text."""
    lines = [
        f"{'C':>4} {'baseline':>10} {'speculative':>12} {'adaptive':>10} {'to better':>10} {'interval':>16} "
        f"{'to speculative':>15} {'interval':>16}"
    ]
    lines += [
        f"{row.concurrency:>4} {row.baseline:>10.1f} {row.speculative:>12.1f} {row.adaptive:>10.1f} "
        f"{row.to_better.ratio:>10.3f} {row.to_better.interval:>16} "
        f"{row.to_speculative.ratio:>15.3f} {row.to_speculative.interval:>16}  {row.verdict}"
        for row in rows
    ]
    return "\n".join([*lines, conclusion(rows)] if rows else lines)
