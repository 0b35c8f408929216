"""Run ``sglang.bench_serving`` of an environment, and read what it writes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from abi_checks.errors import SourceError
from stack.bench.prompts import Prompts

HOST = Path(__file__).with_name("generator_host.py")
IMPORT_LIMIT_S = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Order:
    """One run to be made. ``tokenizer`` "" is the one the server names; ``limit_s`` seconds end it."""

    url: str
    backend: str
    model: str
    tokenizer: str
    prompts: Prompts
    concurrency: int
    requests: int
    output_tokens: int
    seed: int
    limit_s: float


class Engine(Protocol):
    """A load generator."""

    def run(self, order: Order) -> GeneratorRun:
        """Make one run and read what it wrote."""

    def cpu_seconds(self) -> float | None:
        """Processor time of the run that is on, of the one process that can be the limit; None where unknown."""


@dataclass(frozen=True, slots=True)
class GeneratorRun:
    """How one run of the generator ended. ``exit_code`` is None when it was stopped at its time limit."""

    exit_code: int | None
    document: dict[str, Any] | None
    log_tail: str
    monotonic_s: float
    wall_s: float


class Generator:
    """The load generator of one environment, imported once; use as a context manager.

    ``python`` is the environment's interpreter, ``folder`` an existing one for what the runs write.
    Raises :class:`SourceError` where the environment has no usable generator.
    """

    def __init__(self, python: Path, folder: Path) -> None:
        self._folder = folder
        self._errors = (folder / "generator-import.log").open("wb")
        # The hub must not be asked for anything, and no inherited key may leave with a request.
        environment = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "API_KEY", "SGLANG_IS_IN_CI")}
        environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
        try:
            self._host = subprocess.Popen(
                [str(python), str(HOST)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{python}: cannot run this interpreter: {error.strerror}") from error
        self._buffer = b""
        self._child: int | None = None
        if not self._answer(IMPORT_LIMIT_S).get("ready"):
            self.close()
            raise SourceError(
                f"{python}: sglang.bench_serving does not start there:\n{tail(folder / 'generator-import.log')}\n"
                "pass an environment that has SGLang with --env"
            )

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the host and whatever run is on."""
        self._kill_child()
        if self._host.poll() is None:
            self._host.kill()
        self._host.wait()
        for stream in (self._host.stdin, self._host.stdout, self._errors):
            if stream:
                stream.close()

    def run(self, order: Order) -> GeneratorRun:
        """One run; stopped at its time limit."""
        output, log = self._folder / "run.jsonl", self._folder / "run.log"
        output.unlink(missing_ok=True)
        argv = ["--backend", order.backend, "--base-url", order.url, "--warmup-requests", "0"]
        argv += ["--max-concurrency", str(order.concurrency)]
        argv += order.prompts.arguments(order.requests, order.output_tokens, order.seed, self._folder)
        if order.tokenizer:
            argv += ["--tokenizer", order.tokenizer]
        argv += ["--output-file", str(output), "--output-details", "--disable-tqdm"]
        started, wall = time.monotonic(), time.time()
        self._send({"argv": argv, "log": str(log)})
        self._child = self._answer(30.0).get("pid")
        ended = self._answer(order.limit_s) if self._child else {}
        elapsed, wall_elapsed = time.monotonic() - started, time.time() - wall
        if "exit" not in ended:
            self._kill_child()
            if self._child and "exit" not in self._answer(30.0):
                raise SourceError(
                    f"the load generator's host (process {self._host.pid}) stopped answering; measure again"
                )
            self._child = None
            return GeneratorRun(None, None, tail(log), elapsed, wall_elapsed)
        self._child = None
        return GeneratorRun(int(ended["exit"]), _last_document(output), tail(log), elapsed, wall_elapsed)

    def cpu_seconds(self) -> float | None:
        """Processor time of the run that is on, from /proc/PID/stat (fields 14 and 15, proc(5))."""
        try:
            fields = Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, ValueError, IndexError):
            return None

    def _send(self, order: dict[str, Any]) -> None:
        assert self._host.stdin
        try:
            self._host.stdin.write(json.dumps(order).encode() + b"\n")
            self._host.stdin.flush()
        except OSError as error:
            raise SourceError(
                "the load generator's host has ended; see generator-import.log beside the results"
            ) from error

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """The host's next line; empty when none comes in time or the host has ended."""
        assert self._host.stdout
        end = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._host.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return {}
                piece = os.read(self._host.stdout.fileno(), 65536)
                if not piece:
                    return {}
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def _kill_child(self) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)


def tail(path: Path, size: int = 4000) -> str:
    """The last bytes of a file as text, "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_document(path: Path) -> dict[str, Any] | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        document = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    return document if isinstance(document, dict) else None
