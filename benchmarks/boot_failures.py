#!/usr/bin/env python3
"""Failures on purpose on a GPU: what does each boot say of its cause?

    python benchmarks/boot_failures.py --env ENV --models DIR --wide DIR --cuda-home DIR --results DIR

DIR of --models is a small pair of ``cu130-stack models make``, that of --wide one with 64 heads (``--hidden 4096``).
Writes one report and one log a case, and failures.json: what was done, the exit code, what was said, the cause found.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from boots import SMALL, boot_command  # noqa: E402

from stack.serve.keeper import descendants  # noqa: E402

HOLD = """\
import time, torch
held = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(400)
"""


@dataclass
class Case:
    """One failure: options for ``boot``, and changes of the environment."""

    name: str
    done: str
    arguments: list[str]
    options: tuple[str, ...] = SMALL
    environment: dict[str, str] = field(default_factory=dict)
    share: bool = True
    kill_at: str = ""
    """Kill the scheduler as soon as the log holds this."""


def boot(options: argparse.Namespace, case: Case) -> dict:
    """Make the case happen."""
    report, log = options.results / f"{case.name}.json", options.results / f"{case.name}.log"
    words = ["--timeout", "300", "--output", str(report), "--log", str(log), *case.arguments]
    words += ["--share-gpu"] if case.share else []
    command = boot_command("cu130-pypi", options.env, words, case.options)
    environment = {**os.environ, "CUDA_HOME": str(options.cuda_home), **case.environment}
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if case.kill_at:
        kill_scheduler(log, case.kill_at, process)
    said = process.communicate()[0]
    row = {
        "case": case.name,
        "done": case.done,
        "exit": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
    }
    if report.is_file():
        document = json.loads(report.read_text())["boots"][-1]
        row["outcome"] = document["outcome"]
        row["findings"] = [finding["message"] for finding in document["findings"]]
        row["diagnosis"] = document["diagnosis"]
    else:
        row["said"] = said[-1500:]
    print(json.dumps(row), flush=True)
    return row


def kill_scheduler(log: Path, mark: str, process: subprocess.Popen) -> None:
    """SIGKILL to the scheduler process whose command line names this boot's port, once the log holds the mark."""
    while process.poll() is None:
        if log.is_file() and mark in log.read_text(errors="replace"):
            for pid in descendants(process.pid):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sglang::scheduler"):
                    os.kill(pid, signal.SIGKILL)
                    return
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("env", "models", "wide", "cuda-home", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    small = ["--models", str(options.models)]
    wide = ["--models", str(options.wide), "--profile", "eagle3-chain"]
    large_graphs = (
        "mem-fraction-static=0.5",
        "max-total-tokens=40000",
        "cuda-graph-max-bs-decode=256",
        "max-running-requests=256",
    )
    chain = ["--profile", "eagle3-chain"]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        draft = str(options.wide / "drafts" / "full-1")
        cases = [
            Case("wide-head-workspace", "64 heads, graphs for 256 x 4 tokens", wide, large_graphs),
            Case(
                "wide-head-workspace-remedied",
                "the same with SGLANG_FLASHINFER_WORKSPACE_SIZE of 1 GiB",
                wide,
                large_graphs,
                {"SGLANG_FLASHINFER_WORKSPACE_SIZE": str(1 << 30)},
            ),
            Case(
                "wrong-cuda-home",
                "CUDA_HOME names a folder without a toolkit, kernel caches empty",
                small,
                environment={"CUDA_HOME": "/nonexistent/cuda", "HOME": str(options.results / "home")},
            ),
            Case(
                "backend-without-code",
                "attention backend trtllm_mha on SM90",
                small,
                (*SMALL, "attention-backend=trtllm_mha"),
            ),
            Case("port-taken", "--port of a listening process", [*small, "--port", str(port)]),
            Case(
                "draft-of-wrong-shape",
                "a draft of hidden size 4096 for a target of 512",
                ["--models", str(options.models / "target"), "--draft", draft, *chain],
            ),
            Case(
                "adaptive-step-outside",
                "--speculative-adaptive with 5 steps, candidates 0 1 3 7",
                [*small, "--profile", "eagle3-adaptive"],
                (*SMALL, "speculative-num-steps=5", "speculative-num-draft-tokens=6"),
            ),
            Case("scheduler-killed", "SIGKILL to the scheduler during load", small, kill_at="Load weight begin"),
        ]
        with ThreadPoolExecutor(len(cases)) as pool:
            rows = list(pool.map(lambda case: boot(options, case), cases))
    python = options.env / "bin" / "python"
    hoarder = subprocess.Popen([python, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert hoarder.stdout is not None
    held = bool(hoarder.stdout.readline())
    if not held:
        print(f"boot_failures: {python} could not hold 60 GiB of GPU memory; those cases are left out", file=sys.stderr)
    greedy = ("mem-fraction-static=0.88", "cuda-graph-max-bs-decode=8")
    with ThreadPoolExecutor(2) as pool:
        memory_cases = [
            Case("gpu-memory-taken", "another process holds 60 GiB", small, share=False),
            Case("gpu-memory-taken-shared", "the same, told to share, wanting 88 %", small, greedy),
        ]
        rows += pool.map(lambda case: boot(options, case), memory_cases if held else [])
    hoarder.kill()
    hoarder.wait()
    (options.results / "failures.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
