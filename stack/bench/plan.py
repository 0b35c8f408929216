"""What to send: levels of concurrency, how many requests at each, how often, in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from abi_checks.errors import UsageError
from stack.bench.prompts import Prompts
from stack.bench.schema import PlanRecord

SWEEP_LEVELS = (1, 2, 5, 10, 30, 70, 100, 250)
SERIAL_OUTPUT_TOKENS = 2048
"""Output length of the serial runs with which the proven host's first figures were taken."""
MIN_REQUESTS = 4
"""Requests sent at the lowest levels: one request is one sample of latency."""
WAVES = 2
"""Requests a level sends for each that runs at once.

Speculative requests of one length take different times, so a single wave ends with a batch that runs empty, which
would be held against speculation and not against the baseline.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One arm's runs. ``requests`` has one entry a level; ``warmups`` come before the measured runs and are dropped."""

    levels: tuple[int, ...]
    requests: tuple[int, ...]
    rounds: int
    warmups: int
    output_tokens: int
    prompts: Prompts
    seed: int = 1
    level_timeout_s: float = 600.0
    backend: str = "sglang"
    """Which of the load generator's clients: ``sglang`` (its own API) or ``vllm`` (any OpenAI-like /v1/completions)."""

    def __post_init__(self) -> None:
        if not self.levels or any(level < 1 for level in self.levels) or len(set(self.levels)) != len(self.levels):
            raise UsageError(f"levels must be different whole numbers from 1 on, not {self.levels}")
        if self.rounds < 1 or self.warmups < 0:
            raise UsageError("a plan needs at least one round, and no fewer than 0 warm-ups")
        if self.output_tokens < 4:
            raise UsageError("output tokens must be at least 4: the load generator takes no fewer from a prompt file")
        if self.level_timeout_s <= 0:
            raise UsageError("the time limit of a level must be more than 0 s")

    def requests_at(self, level: int) -> int:
        """How many requests a run at this level sends."""
        return self.requests[self.levels.index(level)]

    def order(self) -> Iterator[tuple[int, int]]:
        """(round, level) of every measured run; each round visits all levels, in another order, so that drift shows."""
        for number in range(self.rounds):
            levels = list(self.levels)
            random.Random(f"{self.seed}/{number}").shuffle(levels)
            for level in levels:
                yield number, level

    def record(self) -> PlanRecord:
        """The plan as it is kept with the results."""
        return PlanRecord(
            levels=self.levels,
            requests=self.requests,
            rounds=self.rounds,
            warmups=self.warmups,
            output_tokens=self.output_tokens,
            prompts=self.prompts.label(),
            seed=self.seed,
            level_timeout_s=self.level_timeout_s,
            backend=self.backend,
        )


def serial(runs: int, warmups: int, output_tokens: int, prompts: Prompts, level_timeout_s: float, backend: str) -> Plan:
    """One request at a time, ``runs`` times: how the figures of a single stream are taken."""
    return Plan((1,), (1,), runs, warmups, output_tokens, prompts, 1, level_timeout_s, backend)


def sweep(
    levels: tuple[int, ...], rounds: int, output_tokens: int, prompts: Prompts, level_timeout_s: float, backend: str
) -> Plan:
    """Every level ``rounds`` times, with equal requests that follow one another, after a warm-up at both ends."""
    requests = tuple(max(WAVES * level, MIN_REQUESTS) for level in levels)
    return Plan(levels, requests, rounds, 1, output_tokens, prompts, 1, level_timeout_s, backend)
