"""An environment with a stand-in load generator, and results made of numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stack.bench.generator import Generator
from stack.bench.plan import Plan
from stack.bench.prompts import Prompts
from stack.bench.schema import BenchResult, Environment, PlanRecord, Run, Server

FAKE = Path(__file__).with_name("fake")
PROMPTS = Prompts("words", ("one two three", "four five six"))


@pytest.fixture(scope="session")
def fake_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like an environment and has the stand-in as sglang.bench_serving."""
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={FAKE} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def generator(fake_environment: Path, tmp_path: Path) -> Iterator[Generator]:
    """A running load generator host."""
    folder = tmp_path / "generator"
    folder.mkdir()
    with Generator(fake_environment / "bin" / "python", folder) as host:
        yield host


def small_plan(levels: Sequence[int] = (1, 4), rounds: int = 2, limit_s: float = 30.0) -> Plan:
    """Short runs: 8 tokens a request, one wave a level."""
    return Plan(tuple(levels), tuple(levels), rounds, 0, 8, PROMPTS, 1, limit_s)


def a_run(concurrency: int, throughput: float, number: int = 0, **changes: object) -> Run:
    """A run with one figure that matters."""
    values: dict[str, object] = {
        "concurrency": concurrency,
        "round": number,
        "started": "2026-01-01T00:00:00+00:00",
        "duration_s": 1.0,
        "requests": concurrency,
        "completed": concurrency,
        "output_tokens": int(throughput),
        "throughput": throughput,
        "request_rate": throughput / concurrency,
        "latency": None,
        "ttft": None,
        "itl": None,
        "acceptance": None,
        "load": None,
        "client_cpu": None,
    }
    return Run(**{**values, **changes})  # type: ignore[arg-type]


def a_result(
    arm: str, levels: dict[int, Sequence[float]], settings: dict[str, str] | None = None, version: str = "0.5.14"
) -> BenchResult:
    """A complete result with the given throughputs by concurrency."""
    plan = PlanRecord(tuple(levels), tuple(levels), 3, 0, 64, "words 0123456789ab", 1, 60.0)
    runs = tuple(a_run(c, value, i) for c, values in levels.items() for i, value in enumerate(values))
    basic = {"attention_backend": '"flashinfer"', "cuda_graph_bs": "[1, 2, 4, 8, 16, 32, 64]", "tp_size": "1"}
    server = Server(version, basic | (settings or {}))
    return BenchResult(arm, "measured", "2026-01-01T00:00:00+00:00", True, plan, Environment(), server, runs)


SPECULATIVE = {
    "speculative_algorithm": '"EAGLE3"',
    "speculative_num_steps": "3",
    "speculative_eagle_topk": "1",
}
