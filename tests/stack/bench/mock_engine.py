"""A serving engine whose costs are scripted: it knows what a decode and a verification step cost at each batch size.

The same engine runs in real time behind the mock server and in virtual time for seeded trials, so the crossover of
its two arms is known exactly: speculation wins at a batch b where accept_length * decode(b) > verify(b).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step at batch b: ``fixed + each * b``, ``prefill`` a request; ``accept_length`` 0 is no drafting.

    ``noise`` is the relative standard deviation of a whole run's speed, ``step_noise`` of a single step's.
    """

    fixed: float
    each: float
    prefill: float = 0.0
    accept_length: float = 0.0
    noise: float = 0.0
    step_noise: float = 0.0

    def step(self, batch: int) -> float:
        """Seconds of one step without noise."""
        return self.fixed + self.each * batch

    def throughput(self, batch: int) -> float:
        """Tokens per second at a constant batch, prefill left out."""
        return batch * (self.accept_length or 1.0) / self.step(batch)


@dataclass(slots=True)
class Request:
    """One request inside the engine."""

    tokens: int
    done: int = 0
    verifications: int = 0
    tag: object = None


@dataclass(slots=True)
class Engine:
    """Continuous batching: whoever waits is let in up to ``limit``, then every running request gains tokens a step."""

    costs: Costs
    limit: int = 1 << 30
    seed: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    tokens: int = 0
    finished: int = 0
    verifications: int = 0
    step_times: dict[int, list[float]] = field(default_factory=dict)
    _random: random.Random = field(default_factory=random.Random)
    _speed: float = 1.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.new_run()

    def new_run(self) -> None:
        """Draw the speed of the next run."""
        self._speed = max(0.05, self._random.gauss(1.0, self.costs.noise)) if self.costs.noise else 1.0

    def step(self) -> tuple[float, list[tuple[Request, int]]]:
        """(seconds it takes, tokens each request gains by it). Requests that are done leave."""
        seconds, gains = 0.0, []
        while self.waiting and len(self.running) < self.limit:
            request = self.waiting.popleft()
            request.done = 1
            seconds += self.costs.prefill
            gains.append((request, 1))
            self.running.append(request)
        if not gains and self.running:
            batch = len(self.running)
            seconds = self.costs.step(batch)
            self.step_times.setdefault(batch, []).append(seconds)
            for request in self.running:
                gain = min(self._gain(), request.tokens - request.done)
                request.done += gain
                request.verifications += bool(self.costs.accept_length)
                gains.append((request, gain))
        for request in [r for r in self.running if r.done >= r.tokens]:
            self.running.remove(request)
            self.tokens += request.done
            self.finished += 1
            self.verifications += request.verifications
        if self.costs.step_noise:
            seconds *= max(0.05, self._random.gauss(1.0, self.costs.step_noise))
        return seconds / self._speed, gains

    def _gain(self) -> int:
        if not self.costs.accept_length:
            return 1
        whole = int(self.costs.accept_length)
        return whole + (self._random.random() < self.costs.accept_length - whole)


def simulate(costs: Costs, concurrency: int, requests: int, tokens: int, seed: int) -> float:
    """Output tokens per second of a closed loop of ``concurrency`` clients, in virtual time."""
    engine = Engine(costs, seed=seed)
    left = requests
    now = 0.0
    while left or engine.running or engine.waiting:
        while left and len(engine.running) + len(engine.waiting) < concurrency:
            engine.waiting.append(Request(tokens))
            left -= 1
        seconds, _ = engine.step()
        now += seconds
    return requests * tokens / now
