"""What is kept apart, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stack.bench.checks import Observed, judge, percentile, spread_ms
from stack.bench.generator import GeneratorRun
from stack.bench.schema import Run, ServerLoad

QUIET = Observed(None, None, None, None, None, True)


def document(**changes: Any) -> dict[str, Any]:
    """Two requests of four tokens each, one after the other in 0.8 s."""
    good: dict[str, Any] = {
        "duration": 0.8,
        "completed": 2,
        "output_lens": [4, 4],
        "ttfts": [0.1, 0.1],
        "itls": [[0.1, 0.1, 0.1], [0.05, 0.15, 0.1]],
        "errors": ["", ""],
    }
    return {**good, **changes}


def judged(ran: GeneratorRun, seen: Observed = QUIET, concurrency: int = 1) -> Run:
    return judge(
        ran,
        seen,
        concurrency=concurrency,
        round_number=0,
        started="2026-01-01T00:00:00+00:00",
        requests=2,
        output_tokens=4,
        limit_s=60.0,
    )


def ran(**changes: Any) -> GeneratorRun:
    return GeneratorRun(0, document(**changes), "", 2.0, 2.0)


def test_a_good_run() -> None:
    run = judged(ran())
    assert (run.rejected, run.notes) == ((), ())
    assert run.throughput == 10.0 and run.output_tokens == 8 and run.completed == 2
    assert run.request_rate == 10.0  # 4 tokens in 0.4 s
    assert run.latency and run.latency.p50 == 400.0
    assert run.ttft and run.ttft.mean == 100.0
    assert run.itl and run.itl.p50 == 100.0
    assert run.chunk_rate == 7.5  # 2 gaps of equal length are one chunk: 1 + 1 and 1 + 3 chunks in 0.8 s


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"errors": ["", "Traceback\nConnectionResetError: peer"], "output_lens": [4, 0], "ttfts": [0.1, 0]},
            "1 of 2 requests failed",
        ),
        ({"ttfts": [0.1, 0.0], "itls": [[0.1] * 3, []]}, "ended without an error and without a token"),
        ({"output_lens": [4, 3]}, "1 of 2 answers are shorter than the 4 tokens asked for (shortest 3)"),
        (
            {"output_lens": [4], "ttfts": [0.1], "itls": [[0.1] * 3], "errors": [""]},
            "1 requests were sent, 2 were asked",
        ),
        ({"duration": 9.0}, "it claims 9.0 s, but ran for 2.0 s only"),
        ({"duration": float("nan")}, "negative or no number"),
        ({"ttfts": [0.1, -0.1]}, "negative or no number"),
        ({"errors": [""]}, "lists differ in length"),
        ({"output_lens": "all"}, "cannot be read"),
    ],
)
def test_what_the_generator_calls_a_success(changes: dict[str, Any], reason: str) -> None:
    run = judged(ran(**changes))
    assert any(reason in why for why in run.rejected), run.rejected
    assert not run.usable


def test_a_result_without_its_fields() -> None:
    run = judged(GeneratorRun(0, {"duration": 1.0}, "", 2.0, 2.0))
    assert run.rejected == ("the load generator's result cannot be read (KeyError: 'completed')",)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (GeneratorRun(None, None, "", 60.0, 60.0), "did not finish within 60 s and was stopped"),
        (
            GeneratorRun(1, None, "noise\nValueError: Warmup failed\n", 2.0, 2.0),
            "exit code 1: ValueError: Warmup failed",
        ),
        (GeneratorRun(0, document(), "", 2.0, 3602.0), "clock of this machine jumped by +3600.0 s"),
    ],
)
def test_how_a_run_can_end(end: GeneratorRun, reason: str) -> None:
    assert any(reason in why for why in judged(end).rejected)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(QUIET, server_alive=False), "no longer answers"),
        (replace(QUIET, client_cpu=0.99), "used 99% of its core"),
        (replace(QUIET, server_tokens=16.0), "the server counted 16 tokens, the client 8"),
    ],
)
def test_what_is_seen_from_outside(seen: Observed, reason: str) -> None:
    assert any(reason in why for why in judged(ran(), seen).rejected)


def test_queueing_is_noted_and_not_rejected() -> None:
    limited = judged(ran(), replace(QUIET, running_limit=48), concurrency=70)
    assert limited.usable and limited.notes[0].startswith("queueing: the server runs 48 requests at once, 70 were sent")
    waiting = judged(ran(), replace(QUIET, load=ServerLoad(10, 30, 8, 0.8), running_limit=256))
    assert waiting.notes == ("queueing: requests were waiting in 80% of the samples",)
    transient = judged(ran(), replace(QUIET, load=ServerLoad(10, 30, 8, 0.2), running_limit=256))
    assert transient.notes == ()


def test_ttft_above_what_the_client_can_tell() -> None:
    many = [[0.0001 * (k % 7 + 1) for k in range(2000)]] * 2
    run = judged(ran(itls=many, output_lens=[2001, 2001]))
    assert run.notes == ("TTFT unreliable: 5002 chunks/s; this client tells it rightly up to 2500",)


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7.0
    assert spread_ms([]) is None
