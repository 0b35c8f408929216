"""BenchResult: what one arm of a benchmark measured, with everything needed to judge whether another one is comparable.

Written as one JSON document that carries its schema version and a digest of its own content, so that a document
of another version, or one edited by hand, is told apart from a measured one and never averaged in.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from abi_checks.errors import SourceError, UsageError
from stack.files import write_text

SCHEMA_VERSION = 2
KIND = "bench-result"
SCHEMA_FILE = Path(__file__).with_name("bench_result.schema.json")


@dataclass(frozen=True, slots=True)
class Spread:
    """How one quantity is distributed over the requests (or tokens) of a run; milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Tokens a speculative server gained for each verification, over one run alone."""

    length: float
    source: Literal["counters", "since-flush"]
    """``counters``: difference of the server's token and verification counters; ``since-flush``: the average the server
    keeps, which flushing the cache before the run had set to zero (it misses the last unlogged decode steps)."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What the server said of its own queue while the run was on (polled twice a second)."""

    samples: int
    max_running: int
    max_waiting: int
    waiting_share: float
    """Share of the samples in which requests were waiting."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one decode (or draft and verify) step at a batch size, by the server's own clock."""

    batch: int
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True)
class FullLoad:
    """What came while all the requests asked for were in flight: from the start to the start of the last request."""

    seconds: float
    output_tokens: float

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load generator at one concurrency.

    ``rejected`` holds the reasons why the run must not be averaged with others; ``notes`` what a reader should know
    of a run that may. Durations in seconds, rates in output tokens per second; ``duration_s`` and ``throughput`` are of
    the whole run, its end included, in which fewer requests than asked for are in flight.
    """

    concurrency: int
    round: int
    started: str
    duration_s: float
    requests: int
    completed: int
    output_tokens: int
    throughput: float
    request_rate: float
    """Median over the requests of output tokens per second of that request."""
    latency: Spread | None
    ttft: Spread | None
    itl: Spread | None
    acceptance: Acceptance | None
    load: ServerLoad | None
    client_cpu: float | None
    """Share of one core that the load generator was using while requests were running."""
    full_load: FullLoad | None = None
    """None where each request had a place of its own, so that none waited for another to end."""
    chunk_rate: float | None = None
    """Streamed chunks per second that the load generator had to take, where it could be told."""
    notes: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()

    @property
    def loaded_throughput(self) -> float:
        """Output tokens per second at full load, or of the whole run where it has no such part."""
        return (self.full_load or self).throughput

    @property
    def usable(self) -> bool:
        """Whether the run may be averaged with others."""
        return not self.rejected


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi shows it; clocks in MHz, power in W, memory in MiB."""

    name: str
    sm_clock: str
    max_sm_clock: str
    power_limit: str
    memory: str


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a result comes from. Empty values are things that could not be told, with ``unknown`` saying why."""

    versions: dict[str, str] = field(default_factory=dict)
    lock_sha256: str = ""
    patches: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    topology: str = ""
    client_cores: int = 0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """What the server says of itself: settings in effect (name to JSON text), not those asked for."""

    version: str
    settings: dict[str, str]
    boot_report: dict[str, Any] | None = None
    step_times: tuple[StepTime, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """What was asked of the load generator, the same for all runs of a result."""

    levels: tuple[int, ...]
    requests: tuple[int, ...]
    """Requests sent at each level."""
    rounds: int
    warmups: int
    output_tokens: int
    prompts: str
    """``text``, ``random-ids:N`` or ``file:NAME``, and the first 12 hex digits of the SHA-256 of what was sent."""
    seed: int
    level_timeout_s: float
    backend: str = "sglang"


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One arm: a server with fixed settings, measured by a plan."""

    arm: str
    origin: Literal["measured", "record"]
    """``record``: figures written down elsewhere and taken over; ``source`` says from where."""
    created: str
    complete: bool
    plan: PlanRecord
    environment: Environment
    server: Server
    runs: tuple[Run, ...]
    source: str = ""

    def usable(self, concurrency: int) -> tuple[Run, ...]:
        """The runs at one concurrency that may be averaged."""
        return tuple(run for run in self.runs if run.concurrency == concurrency and run.usable)

    @property
    def speculative(self) -> bool:
        """Whether the server decodes speculatively."""
        return self.server.settings.get("speculative_algorithm", "null") != "null"


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in document.items() if k != "sha256"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def dump(result: BenchResult) -> str:
    """The document of a result, as JSON text."""
    document = {"kind": KIND, "schema_version": SCHEMA_VERSION, **msgspec.to_builtins(result)}
    return json.dumps({**document, "sha256": _digest(document)}, indent=1) + "\n"


def save(result: BenchResult, path: Path) -> None:
    """Write a result beside its place and rename it there; makes the folder where it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, dump(result))
    except OSError as error:
        raise SourceError(f"{path}: cannot write the result: {error.strerror}") from error


def parse(text: str | bytes, name: str) -> BenchResult:
    """A result from its document; ``name`` is the file named in errors.

    Raises :class:`UsageError` for what is no result, is of another schema version, or does not match its own digest.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON ({error}); expected a result written by 'cu130-stack bench'") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{name}: no benchmark result (its 'kind' is not '{KIND}')")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{name}: schema version {version!r}, this program reads {SCHEMA_VERSION}; "
            "read it with the release that wrote it, or measure again"
        )
    if document.get("sha256") != _digest(document):
        raise UsageError(
            f"{name}: the content does not match its own SHA-256: it was edited after it was measured. "
            "It is not used; restore the file or measure again"
        )
    try:
        return msgspec.convert(document, BenchResult, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: not a benchmark result: {error}") from error


def load(path: Path) -> BenchResult:
    """Read a result file; see :func:`parse` for the errors."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot read the result: {error.strerror}") from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a result document (a copy is in the package as ``bench_result.schema.json``)."""
    # Through JSON and back, because tuples among the defaults would not equal the lists read from a file.
    schema: dict[str, Any] = json.loads(json.dumps(msgspec.json.schema(BenchResult)))
    body = schema["$defs"]["BenchResult"]
    body["properties"] = {
        "kind": {"const": KIND},
        "schema_version": {"const": SCHEMA_VERSION},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        **body["properties"],
    }
    body["required"] = ["kind", "schema_version", "sha256", *body["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    write_text(SCHEMA_FILE, json.dumps(json_schema(), indent=1) + "\n")
