"""Start a server, wait until it answers, question it, and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError
from abi_checks.findings import Finding, Severity
from stack.serve.client import Client
from stack.serve.diagnose import Diagnosis, diagnose
from stack.serve.gpu import Gpu
from stack.serve.launch import Launch
from stack.serve.phases import NO_PORT, LogFollower, PhaseClock
from stack.serve.ports import HOST, listeners
from stack.serve.process import ServerProcess, command_line, running_server
from stack.serve.questions import Questions, answer_findings, ask
from stack.serve.report import Answer, BootReport, worst
from stack.serve.settings import compare_settings, setting_findings

_POLL = 0.25
"""Seconds between two looks at a starting server."""
_HEALTHY_IN_A_ROW = 2
"""A server that has answered once may still be about to fail (its health flaps while it warms up)."""
_PASSED_ON = ("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "FLASHINFER_WORKSPACE_BASE", "SGLANG_FLASHINFER_WORKSPACE_SIZE")
"""Variables that decide what a server can do, put into the report where they are set."""

Say = Callable[[str], None]
GpuReader = Callable[[], tuple[Gpu, ...]]
MemoryReader = Callable[[], tuple[Mapping[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot to be made. ``timeout`` is the one limit in seconds for everything; ``gpus`` reads the GPUs' state,
    ``memory`` the bytes that each process holds on each of them.
    """

    name: str
    launch: Launch
    questions: Questions
    log: Path
    timeout: float
    gpus: GpuReader
    memory: MemoryReader
    versions: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()
    """What is known of the launch line before it is tried."""


class _NotReadyError(Exception):
    """The server ended, or the time is up, before it answered."""


def boot(plan: Boot, say: Say) -> BootReport:
    """Make one boot. A server that does not start is a failed report with its diagnosis, not an exception."""
    with running(plan, say) as report:
        return report


@contextmanager
def running(plan: Boot, say: Say) -> Iterator[BootReport]:
    """The report of a boot; unless it is one of a server that did not start, the server is up inside the block."""
    before = plan.gpus()
    environment = plan.launch.environment()
    began = time.monotonic()
    clock = PhaseClock(began)
    report = BootReport(
        name=plan.name,
        outcome="failed",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds_to_ready=None,
        phases=(),
        command=tuple(plan.launch.command()),
        environment=tuple((name, environment[name]) for name in _PASSED_ON if name in environment),
        gpus=before,
        gpu_memory=(),
        versions=plan.versions,
        settings=(),
        answers=(),
        findings=plan.findings,
        diagnosis=None,
    )
    client = Client(f"http://{HOST}:{plan.launch.port}")
    deadline = began + plan.timeout
    with ExitStack() as stack:
        server = stack.enter_context(running_server(plan.launch.command(), environment, plan.log))
        try:
            _wait_ready(server, client, clock, deadline, say)
            _require_own(server, plan.launch.port)
            report = replace(report, seconds_to_ready=time.monotonic() - began, phases=tuple(clock.seconds.items()))
            report = replace(report, gpu_memory=_held(server, plan.memory()))
            report = _question(report, client, plan, max(1.0, deadline - time.monotonic()))
        except (_NotReadyError, SourceError) as error:
            # Diagnosed before the server is ended: that would be in its log too.
            report = _failed(replace(report, phases=tuple(clock.seconds.items())), str(error), plan.log)
            stack.close()
        yield report


def judge_url(url: str, questions: Questions, timeout: float) -> BootReport:
    """Question a server that is already there; it is neither started nor ended."""
    client = Client(url)
    if not client.healthy():
        raise SourceError(f"{url}/health_generate: the server does not answer, or is not healthy")
    info = client.server_info()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    report = BootReport(url, "failed", now, None, (), (), (), (), (), (), (), (), (), None)
    return _judged(report, info, (), ask(client, questions, timeout))


def _wait_ready(server: ServerProcess, client: Client, clock: PhaseClock, deadline: float, say: Say) -> None:
    follower = LogFollower(server.log)
    said = ""
    healthy = 0
    while healthy < _HEALTHY_IN_A_ROW:
        phase = clock.look(time.monotonic(), server.compiling(), follower.lines())
        if phase != said:
            say(f"{sum(clock.seconds.values()):.0f} s: {phase}")
            said = phase
        if server.gone():
            raise _NotReadyError(f"the server ended ({_ending(server.exit_code)}) while {phase}")
        if phase == NO_PORT:
            raise _NotReadyError("the server could not listen on its port")
        if time.monotonic() > deadline:
            raise _NotReadyError(f"the server was not ready within the time limit, while {phase}")
        healthy = healthy + 1 if client.healthy() else 0
        if not healthy:
            time.sleep(_POLL)
    clock.look(time.monotonic(), False, follower.lines())


def _require_own(server: ServerProcess, port: int) -> None:
    """Refuse the answers of another process that took the port while the server was starting."""
    listening = listeners(port)
    if listening and not set(listening).intersection(server.processes()):
        holders = ", ".join(f"process {pid} ({command_line(pid)})" for pid in listening)
        raise _NotReadyError(f"on port {port} another process answers: {holders}")


def _ending(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _question(report: BootReport, client: Client, plan: Boot, timeout: float) -> BootReport:
    info = client.server_info()
    answers = ask(client, plan.questions, timeout)
    return _judged(report, info, plan.launch.options, answers)


def _held(server: ServerProcess, memory: tuple[Mapping[int, int], ...]) -> tuple[int | None, ...]:
    """Bytes that the server's processes hold on each GPU; None where NVML names none of them."""
    own = set(server.processes())
    return tuple(sum(size for pid, size in held.items() if pid in own) or None for held in memory)


def _speculates(info: Mapping[str, Any]) -> bool:
    return bool(info.get("speculative_algorithm"))


def _judged(
    report: BootReport, info: Mapping[str, Any], options: tuple[tuple[str, str], ...], answers: tuple[Answer, ...]
) -> BootReport:
    settings = compare_settings(options, info)
    findings = (
        *report.findings,
        *setting_findings(settings),
        *answer_findings(answers, _speculates(info)),
    )
    versions = dict(report.versions)
    if info.get("version"):
        versions["sglang"] = str(info["version"])
    return replace(
        report,
        outcome="failed" if worst(findings) is Severity.ERROR else "passed",
        settings=settings,
        answers=answers,
        findings=findings,
        versions=tuple(versions.items()),
    )


def _failed(report: BootReport, reason: str, log: Path) -> BootReport:
    found: Diagnosis = diagnose(log)
    remedy = found.remedy if found.failed else f"read {log.name}; nothing in it says what went wrong"
    finding = Finding("boot", Severity.ERROR, "", reason, found.title if found.failed else reason, remedy)
    return replace(report, findings=(*report.findings, finding), diagnosis=found if found.failed else None)
