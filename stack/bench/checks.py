"""Turn what the load generator wrote into a Run, and find the reasons for which a run must not be averaged.

What the generator counts as a success is not taken on trust: a stream that breaks off, an answer without a single
token (it then reports the length that was asked for) and a shorter answer all pass as "completed" there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from stack.bench.fullload import full_load
from stack.bench.generator import GeneratorRun
from stack.bench.schema import Acceptance, Run, ServerLoad, Spread

CLOCK_JUMP_S = 0.5
"""Wall clock and monotonic clock may part by this much in one run before it counts as a jump."""
CLIENT_BOUND = 0.95
"""Share of one core from which the single-threaded load generator, and not the server, is the limit."""
RELIABLE_TTFT_CHUNKS_PER_S = 2500.0
"""Streamed chunks per second up to which the time to first token is trusted.

On two cores it was within 25 % of the true one at 2,699 and no longer at 3,761 (docs/evidence/bench_client.json).
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen from outside while a run was on."""

    acceptance: Acceptance | None
    load: ServerLoad | None
    client_cpu: float | None
    server_tokens: float | None
    """Tokens the server counted for this run, or None where it does not tell."""
    running_limit: int | None
    """Requests the server runs at once at most."""
    server_alive: bool


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest of the ordered values."""
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread_ms(seconds: Sequence[float]) -> Spread | None:
    """Distribution in milliseconds of values in seconds; None without values."""
    if not seconds:
        return None
    ordered = sorted(value * 1000 for value in seconds)
    at = [round(percentile(ordered, share), 4) for share in (0.5, 0.9, 0.95, 0.99)]
    return Spread(round(fmean(ordered), 4), *at)


def judge(
    ran: GeneratorRun,
    seen: Observed,
    *,
    concurrency: int,
    round_number: int,
    started: str,
    requests: int,
    output_tokens: int,
    limit_s: float,
    backend: str = "sglang",
) -> Run:
    """The run, with its rejections and notes."""
    rejected, notes = _outside(ran, seen, concurrency, limit_s)
    base = Run(
        concurrency=concurrency,
        round=round_number,
        started=started,
        duration_s=round(ran.monotonic_s, 4),
        requests=requests,
        completed=0,
        output_tokens=0,
        throughput=0.0,
        request_rate=0.0,
        latency=None,
        ttft=None,
        itl=None,
        acceptance=seen.acceptance,
        load=seen.load,
        client_cpu=seen.client_cpu,
        notes=tuple(notes),
        rejected=tuple(rejected),
    )
    if ran.document is None:
        return base
    try:
        rows = _Rows.read(ran.document)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"the load generator's result cannot be read ({type(error).__name__}: {error})"
        return replace(base, rejected=(*rejected, reason))
    rejected += rows.problems(requests, output_tokens, ran.monotonic_s, seen.server_tokens)
    done = rows.completed
    if backend == "vllm" and (fewer := sum(1 for i in done if 1 + len(rows.itls[i]) < rows.lengths[i])):
        notes.append(
            f"tokens not counted: {fewer} of {len(done)} answers came in fewer chunks than tokens, and this client "
            "then reports the number asked for"
        )
    latencies = [rows.ttfts[i] + math.fsum(rows.itls[i]) for i in done]
    rates = [rows.lengths[i] / latency for i, latency in zip(done, latencies, strict=True) if latency > 0]
    tokens = sum(rows.lengths[i] for i in done)
    chunk_rate = _chunk_rate(rows, done)
    if chunk_rate is not None and chunk_rate > RELIABLE_TTFT_CHUNKS_PER_S:
        notes.append(
            f"TTFT unreliable: {chunk_rate:.0f} chunks/s; "
            f"this client tells it rightly up to {RELIABLE_TTFT_CHUNKS_PER_S:.0f}"
        )
    return replace(
        base,
        duration_s=round(rows.duration_s, 6),
        completed=len(done),
        output_tokens=tokens,
        throughput=round(tokens / rows.duration_s, 4) if rows.duration_s > 0 else 0.0,
        request_rate=round(median(rates), 4) if rates else 0.0,
        latency=spread_ms(latencies),
        ttft=spread_ms([rows.ttfts[i] for i in done]),
        itl=spread_ms([gap for i in done for gap in rows.itls[i]]),
        full_load=(
            full_load(rows.lengths, rows.ttfts, rows.itls, concurrency, rows.duration_s)
            if len(done) == len(rows.lengths)
            else None
        ),
        chunk_rate=chunk_rate,
        notes=tuple(notes),
        rejected=tuple(rejected),
    )


def _outside(ran: GeneratorRun, seen: Observed, concurrency: int, limit_s: float) -> tuple[list[str], list[str]]:
    """Reasons and notes that need nothing from the generator's own result."""
    rejected, notes = [], []
    if not seen.server_alive:
        rejected.append("the server no longer answers after this run")
    if ran.exit_code is None:
        rejected.append(f"did not finish within {limit_s:.0f} s and was stopped")
    elif ran.exit_code or ran.document is None:
        last = next((line for line in reversed(ran.log_tail.splitlines()) if line.strip()), "it wrote nothing")
        rejected.append(f"the load generator ended with exit code {ran.exit_code}: {last.strip()[:300]}")
    if abs(ran.wall_s - ran.monotonic_s) > CLOCK_JUMP_S:
        rejected.append(f"the clock of this machine jumped by {ran.wall_s - ran.monotonic_s:+.1f} s during the run")
    if seen.client_cpu is not None and seen.client_cpu > CLIENT_BOUND:
        rejected.append(
            f"the load generator used {seen.client_cpu:.0%} of its core: the client was the limit, not the server "
            "(raise the server's --stream-interval, or send from a faster core)"
        )
    if seen.running_limit is not None and concurrency > seen.running_limit:
        notes.append(
            f"queueing: the server runs {seen.running_limit} requests at once, {concurrency} were sent; "
            "raise --max-running-requests to measure this level"
        )
    elif seen.load and seen.load.samples >= 4 and seen.load.waiting_share > 0.5:
        notes.append(f"queueing: requests were waiting in {seen.load.waiting_share:.0%} of the samples")
    return rejected, notes


@dataclass(frozen=True, slots=True)
class _Rows:
    """The generator's result, one entry a request, in the order in which they were sent."""

    duration_s: float
    reported_completed: int
    lengths: list[int]
    ttfts: list[float]
    itls: list[list[float]]
    errors: list[str]

    @classmethod
    def read(cls, document: dict[str, Any]) -> _Rows:
        rows = cls(
            float(document["duration"]),
            int(document["completed"]),
            [int(x) for x in document["output_lens"]],
            [float(x) for x in document["ttfts"]],
            [[float(gap) for gap in row] for row in document["itls"]],
            [str(x or "") for x in document["errors"]],
        )
        if not len(rows.lengths) == len(rows.ttfts) == len(rows.itls) == len(rows.errors):
            raise ValueError("its lists differ in length")
        numbers = [rows.duration_s, *rows.ttfts, *(gap for row in rows.itls for gap in row)]
        if not all(math.isfinite(x) and x >= 0 for x in numbers):
            raise ValueError("it holds a time that is negative or no number")
        return rows

    @property
    def completed(self) -> list[int]:
        """Indices of the requests that brought at least one token."""
        return [
            i for i, (length, ttft) in enumerate(zip(self.lengths, self.ttfts, strict=True)) if length > 0 and ttft > 0
        ]

    def problems(self, requests: int, output_tokens: int, elapsed_s: float, server_tokens: float | None) -> list[str]:
        """Why these numbers must not be averaged."""
        found = []
        done = self.completed
        if len(self.lengths) != requests:
            found.append(f"{len(self.lengths)} requests were sent, {requests} were asked for")
        failed = Counter(_first_line(error) for error in self.errors if error)
        if failed:
            worst, count = failed.most_common(1)[0]
            found.append(f"{sum(failed.values())} of {len(self.errors)} requests failed, {count} of them with: {worst}")
        silent = sum(1 for i, error in enumerate(self.errors) if not error and i not in set(done))
        if silent:
            found.append(f"{silent} of {len(self.errors)} requests ended without an error and without a token")
        short = [self.lengths[i] for i in done if self.lengths[i] < output_tokens]
        if short:
            found.append(
                f"{len(short)} of {len(done)} answers are shorter than the {output_tokens} tokens asked for "
                f"(shortest {min(short)})"
            )
        if self.duration_s > elapsed_s + CLOCK_JUMP_S:
            found.append(f"it claims {self.duration_s:.1f} s, but ran for {elapsed_s:.1f} s only")
        tokens = sum(self.lengths[i] for i in done)
        if server_tokens is not None and not failed and abs(server_tokens - tokens) > 0.01 * tokens:
            found.append(
                f"the server counted {server_tokens:.0f} tokens, the client {tokens}: "
                "other clients used the server, or tokens were lost"
            )
        return found


def _chunk_rate(rows: _Rows, done: list[int]) -> float | None:
    """Chunks per second; equal gaps in a row are one chunk, whose gap the generator spreads over its tokens."""
    if not done or rows.duration_s <= 0:
        return None
    chunks = 0
    for i in done:
        gaps = rows.itls[i]
        chunks += 1 + sum(1 for before, gap in zip([None, *gaps], gaps, strict=False) if gap != before)
    return round(chunks / rows.duration_s, 1)


def _first_line(error: str) -> str:
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:200]
