"""What a server is doing, read from its log while it starts.

The lines are those of SGLang 0.5.9 and 0.5.14 (``model_executor/model_runner.py``, ``mem_cache/memory_pool.py``,
``entrypoints/http_server.py``). Kernels compiled on first use leave no line; their compilers are seen as processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST_LINE = 4096
"""Bytes of one line that are looked at; the rest of a longer one is passed over."""
_BLOCK = 1 << 20

STARTING = "starting"
COMPILING = "compiling kernels"
READY = "ready"
NO_PORT = "failing to listen on its port"
"""SGLang 0.5.14 stays there for two minutes, waiting for itself to answer."""

_MARKS = (
    (re.compile(rb"Init torch distributed begin"), "joining GPUs"),
    (re.compile(rb"Load weight begin"), "loading weights"),
    (re.compile(rb"Load weight end"), "allocating memory"),
    (re.compile(rb"KV Cache is allocated"), "allocating memory"),
    (re.compile(rb"[Cc]apture .*graph begin"), "capturing graphs"),
    (re.compile(rb"[Cc]apture .*graph end"), "finishing"),
    (re.compile(rb"Application startup complete|Uvicorn running"), "warming up"),
    (re.compile(rb"The server is fired up and ready to roll"), READY),
    (re.compile(rb"error while attempting to bind on address"), NO_PORT),
)


class LogFollower:
    """New lines of a growing file, in bounded memory, whatever the file holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Lines, cut to a bounded length, that have been completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                self._offset += len(block)
                *whole, rest = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
                for line in whole:
                    yield line[:_LONGEST_LINE]
                self._rest = rest[:_LONGEST_LINE]


@dataclass(slots=True)
class PhaseClock:
    """Seconds spent in each phase, as far apart as the log was looked at. Times are those of ``time.monotonic``."""

    looked: float
    phase: str = STARTING
    seconds: dict[str, float] = field(default_factory=dict)
    """In the order in which the phases were first met; their sum is the whole time."""

    def look(self, now: float, compiling: bool, lines: Iterable[bytes]) -> str:
        """Count the time since the last look, take in what the log says now, and return what is going on."""
        spent = COMPILING if compiling else self.phase
        self.seconds[spent] = self.seconds.get(spent, 0.0) + now - self.looked
        self.looked = now
        for line in lines:
            for pattern, phase in _MARKS:
                if pattern.search(line):
                    self.phase = phase
                    break
        return spent if compiling else self.phase
