"""Predict which arm wins at a batch size from what a step costs and what it brings, and hold that against measurement.

A decode step of batch b gives b tokens and takes d(b); a draft-and-verify step gives b times the accept length and
takes v(b). Speculation pays where accept length * d(b) > v(b). The step times are the server's own
(SGLANG_RECORD_STEP_TIME=1), so the prediction uses none of the client's throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from abi_checks.errors import UsageError
from stack.bench.crossover import EVEN, Crossover
from stack.bench.schema import BenchResult, StepTime


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted and measured ratio speculative / baseline at one concurrency."""

    concurrency: int
    decode_s: float
    verify_s: float
    accept_length: float
    predicted: float
    measured: float
    measured_side: int
    measured_even: bool

    @property
    def agrees(self) -> bool | None:
        """Whether both are on the same side of 1, or both are even; None where the measurement decides neither.

        A prediction outside of what counts as even is not refuted by a measured one: the side may still be right.
        """
        if self.measured_side:
            return (self.predicted > 1) == (self.measured_side > 0)
        return True if self.measured_even and abs(self.predicted - 1) <= EVEN else None


def accept_length(acceptance: float, steps: int) -> float:
    """Mean tokens of a verification when each proposal is right with one probability, independently of the others."""
    return sum(acceptance**k for k in range(steps + 1))


def step_seconds(times: Sequence[StepTime], batch: int) -> float | None:
    """Seconds of a step at a batch size, linear between the two nearest recorded ones; None outside twice the range."""
    known = sorted((time.batch, time.seconds) for time in times)
    if not known or not known[0][0] / 2 <= batch <= known[-1][0] * 2:
        return None
    below = [row for row in known if row[0] <= batch]
    above = [row for row in known if row[0] >= batch]
    if not below or not above:
        return (below or above)[-1 if below else 0][1]
    (left, low), (right, high) = below[-1], above[0]
    return low if left == right else low + (high - low) * (batch - left) / (right - left)


def predict(
    baseline: BenchResult, speculative: BenchResult, answer: Crossover, length: float | None = None
) -> list[Prediction]:
    """One prediction a level of ``answer``.

    ``length`` is the accept length known in advance; without it the level's own measured one is used.
    Raises :class:`UsageError` when a server recorded no step times.
    """
    for result in (baseline, speculative):
        if not result.server.step_times:
            raise UsageError(
                f"{result.arm}: holds no step times; start the server with SGLANG_RECORD_STEP_TIME=1 and measure again"
            )
    rows = []
    for level in answer.levels:
        decode = step_seconds(baseline.server.step_times, level.concurrency)
        verify = step_seconds(speculative.server.step_times, level.concurrency)
        lengths = [run.acceptance.length for run in speculative.usable(level.concurrency) if run.acceptance]
        gain = length if length is not None else (math.fsum(lengths) / len(lengths) if lengths else None)
        if decode is None or verify is None or gain is None:
            continue
        ratio = gain * decode / verify
        rows.append(Prediction(level.concurrency, decode, verify, gain, ratio, level.ratio, level.side, level.even))
    return rows


def render(rows: Sequence[Prediction]) -> str:
    """Predictions as a text table."""
    lines = [f"{'C':>4} {'decode ms':>10} {'verify ms':>10} {'length':>7} {'predicted':>10} {'measured':>9}  same side"]
    lines += [
        f"{row.concurrency:>4} {row.decode_s * 1e3:>10.3f} {row.verify_s * 1e3:>10.3f} {row.accept_length:>7.3f} "
        f"{row.predicted:>10.3f} {row.measured:>9.3f}  {_agreement(row)}"
        for row in rows
    ]
    return "\n".join(lines)


def _agreement(row: Prediction) -> str:
    if row.agrees and row.measured_even:
        return "yes, even"
    return {True: "yes", False: "NO", None: "measured even" if row.measured_even else "measurement undecided"}[
        row.agrees
    ]
