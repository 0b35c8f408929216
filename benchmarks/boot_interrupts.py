#!/usr/bin/env python3
"""Interrupt boots at random moments: is any process, port or GPU memory left behind?

    python benchmarks/boot_interrupts.py --env ENV --models DIR --results FILE [--boots 50] [--parallel 10]

Uses the first visible GPU, on which nothing else may run. The processes below a boot are noted when it is interrupted
and looked for as soon as it has ended. Orphans become children of this program, so at the end none of a boot's
processes may be below it. SIGINT, SIGTERM and SIGHUP take turns.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from boots import SMALL, boot_command  # noqa: E402

from abi_checks.errors import UserError  # noqa: E402
from stack.serve.gpu import memory_by_process, visible_gpus  # noqa: E402
from stack.serve.keeper import adopt_orphans, descendants  # noqa: E402

END_LIMIT_S = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PORT = 20_000
"""Of servers 200 ports apart; all below the range from which the kernel gives ports to whoever asks for any."""


@dataclass(frozen=True)
class Outcome:
    """One interrupted boot. ``reached`` is the last line of the server's log at that moment."""

    after_s: float
    signal: str
    processes_before: int
    reached: str
    exit: int | None
    ended_in_s: float
    processes_left: int
    port_free: bool


def started(pid: int) -> str:
    """When a living process started, in ticks, which tells it from a later one of the same number; "" for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def survivors() -> list[str]:
    """Command lines of what still runs below this program."""
    lines = []
    for pid in descendants(os.getpid()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        lines.append(line)
    return lines


def bindable(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def interrupt(options: argparse.Namespace, number: int, after_s: float, folder: Path) -> Outcome:
    """Start a boot, interrupt it, and look."""
    log = folder / f"{number}.log"
    port = FIRST_PORT + 200 * number
    words = ["--models", str(options.models), "--port", str(port), "--log", str(log), "--profile", "eagle3-chain"]
    words += ["--share-gpu"]
    command = boot_command(options.stack, options.env, words, SMALL)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    time.sleep(after_s)
    before = {pid: started(pid) for pid in descendants(process.pid)}
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    sent = SIGNALS[number % len(SIGNALS)]
    process.send_signal(sent)
    began = time.monotonic()
    try:
        code = process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    took = time.monotonic() - began
    left = [pid for pid, when in before.items() if when and started(pid) == when]
    outcome = Outcome(
        round(after_s, 1),
        sent.name,
        len(before),
        lines[-1][-160:] if lines else "",
        code,
        round(took, 2),
        len(left),
        bindable(port),
    )
    print(json.dumps(asdict(outcome)), flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", default="cu130-pypi")
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--boots", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=10)
    parser.add_argument("--latest", type=float, default=60.0, help="seconds after which the last are interrupted")
    options = parser.parse_args()
    # What a shell starts in the background ignores SIGINT, and hands that on to all below it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    adopt_orphans()
    chooser = random.Random(0)
    # One in each of so many equal stretches of time, so that no phase of a boot is left out by chance.
    stretch = options.latest / options.boots
    moments = [stretch * (number + chooser.random()) for number in range(options.boots)]
    chooser.shuffle(moments)
    try:
        held_before = visible_gpus(1)[0].memory_used
    except UserError as error:
        print(f"boot_interrupts: {error}", file=sys.stderr)
        return error.exit_code
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.parallel) as pool:
        outcomes = list(
            pool.map(lambda row: interrupt(options, row[0], row[1], Path(folder)), list(enumerate(moments)))
        )
    # The driver gives the memory of an ended process back a moment later.
    end = time.monotonic() + 10
    while visible_gpus(1)[0].memory_used > held_before and time.monotonic() < end:
        time.sleep(0.5)
    gpu = visible_gpus(1)[0]
    clean = [o for o in outcomes if o.exit is not None and not o.processes_left and o.port_free]
    document = {
        "boots": len(outcomes),
        "clean": len(clean),
        "gpu": gpu.name,
        "gpu_memory_before": held_before,
        "gpu_memory_after": gpu.memory_used,
        "gpu_processes_after": len(memory_by_process(1)[0]),
        "processes_after": survivors(),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    options.results.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "outcomes"}))
    whole = len(clean) == len(outcomes) and not document["processes_after"]
    return 0 if whole and gpu.memory_used <= held_before else 1


if __name__ == "__main__":
    sys.exit(main())
