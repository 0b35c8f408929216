"""Where speculation stops paying, on one GPU, for four synthetic pairs of target and draft.

Three pairs share a costly target (about 25 GB of weights, so that a decode step is long beside the cost of
drafting) and differ in the draft's acceptance: 0.5, 0.8 and 1. The fourth has a cheap target, where speculation cannot
win. All servers of a phase are up side by side, one is measured at a time, and the arms take turns level by level.

    python benchmarks/gpu_pairs.py models WORK            write the models (30 GB)
    python benchmarks/gpu_pairs.py sweep WORK OUT         baselines and EAGLE-3 at every level; crossover and prediction
    python benchmarks/gpu_pairs.py adaptive WORK OUT      the settings that follow, measured

``--seconds`` bounds a phase: rounds are started while there is time for one more. The environment is ``--env`` (its
``bin/python`` runs servers and load generator). ``--mock`` rehearses everything without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from abi_checks.errors import UserError  # noqa: E402
from stack.bench import adaptive, costmodel, crossover, plan, prompts, validate  # noqa: E402
from stack.bench.environment import fingerprint  # noqa: E402
from stack.bench.generator import Generator  # noqa: E402
from stack.bench.measure import Arm, Recorder  # noqa: E402
from stack.bench.schema import BenchResult, load  # noqa: E402
from stack.bench.server import ServerApi  # noqa: E402
from stack.synthetic.llama import Shape  # noqa: E402
from stack.synthetic.models import Draft, SyntheticModels, write_models  # noqa: E402
from stack.synthetic.orbit import DraftForm  # noqa: E402

STEPS = 3
TARGETS = {
    "costly": SyntheticModels(
        "llama", Shape(32, 4096, 28672, 512, 8), 0, tuple(Draft(DraftForm.FULL, a) for a in (0.5, 0.8, 1.0))
    ),
    "cheap": SyntheticModels("llama", Shape(8, 512, 1024, 512), 0, (Draft(DraftForm.FULL, 0.8),)),
}
LEVELS = plan.SWEEP_LEVELS
REQUESTS = (2, 4, 10, 20, 60, 140, 200, 500)
OUTPUT_TOKENS = 192
"""Long enough that the wave's start, when the server takes some 5 ms a request to let it in, does not decide."""
BOOT_LIMIT_S = 300.0
FIRST_PORT = 31000
OPTIONS = [
    *("--attention-backend", "flashinfer", "--dtype", "bfloat16", "--max-running-requests", "256"),
    *("--max-total-tokens", "56000", "--mem-fraction-static", "0.93"),
    # A graph for every level measured and none else: captures cost seconds each.
    *("--cuda-graph-bs-decode", *map(str, LEVELS), "--cuda-graph-backend-prefill", "disabled"),
    # Up to 75,000 tokens a second leave the cheap server; a chunk for each would make the client the limit.
    *("--stream-interval", "16", "--decode-log-interval", "5", "--enable-metrics", "--sleep-on-idle"),
]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_RECORD_STEP_TIME": "1",
    # The default of 384 MiB is too small for 64 heads at 250 requests of 4 tokens.
    "SGLANG_FLASHINFER_WORKSPACE_SIZE": str(1 << 30),
    # The costly target's grouped heads would take another kernel, and with it a compile of its own.
    "SGLANG_FLASHINFER_USE_TENSOR_CORE": "false",
}
PROMPTS = prompts.Prompts("short", tuple(f"{a} {b}" for a in ("the", "one") for b in ("sea", "wind", "road", "lamp")))


@dataclass(frozen=True, slots=True)
class Wanted:
    """One server: which target, which draft (or none), with which adaptive configuration file (or none)."""

    target: str
    draft: Draft | None = None
    config: Path | None = None

    @property
    def name(self) -> str:
        kind = "baseline" if not self.draft else f"{'adaptive' if self.config else 'eagle3'}-{self.draft.acceptance:g}"
        return f"{self.target}-{kind}"

    def options(self, work: Path) -> list[str]:
        """The server's options after the common ones."""
        words = ["--model-path", str(work / self.target / "target"), *OPTIONS]
        if self.draft:
            draft = work / self.target / "drafts" / self.draft.name
            words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)]
            words += ["--speculative-num-steps", str(STEPS), "--speculative-eagle-topk", "1"]
            words += ["--speculative-num-draft-tokens", str(STEPS + 1)]
        if self.config:
            words += ["--speculative-adaptive", "--speculative-adaptive-config", str(self.config)]
        return words


class Booted:
    """A server process of its own session, with its log."""

    def __init__(self, wanted: Wanted, port: int, options: argparse.Namespace, logs: Path) -> None:
        self.wanted, self.port, self.log = wanted, port, logs / f"{wanted.name}.log"
        command = [str(options.env / "bin" / "python"), "-m", "sglang.launch_server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), *wanted.options(options.work)]
        if options.mock:
            command = _mock_command(wanted, options, logs / f"{wanted.name}.port")
        self.command = command
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | ENVIRONMENT, cwd=ROOT, start_new_session=True
            )
        self.port_file = logs / f"{wanted.name}.port" if options.mock else None

    @property
    def url(self) -> str:
        if self.port_file and self.port_file.exists():
            self.port = int(self.port_file.read_text())
        return f"http://127.0.0.1:{self.port}"

    def ready(self) -> bool:
        """Whether it answers /health (or, mocked, /v1/models)."""
        try:
            with urllib.request.urlopen(self.url + ("/v1/models" if self.port_file else "/health"), timeout=5) as reply:
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def end(self) -> None:
        """End the whole session."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _mock_command(wanted: Wanted, options: argparse.Namespace, port_file: Path) -> list[str]:
    costs = {"costly": (0.0075, 0.00002), "cheap": (0.001, 0.00001)}[wanted.target]
    words = [sys.executable, "-m", "tests.stack.bench.mock_server", "--port-file", str(port_file), "--limit", "256"]
    words += ["--fixed", str(costs[0]), "--each", str(costs[1]), "--prefill", "0.0001", "--noise", "0.01"]
    if wanted.draft and wanted.config is None:
        length = costmodel.accept_length(wanted.draft.acceptance, STEPS)
        words[words.index("--fixed") + 1] = str(costs[0] + 0.0045)
        words[words.index("--each") + 1] = str(costs[1] * 12)
        words += ["--accept-length", str(length)]
    return words


@contextmanager
def booted(wanted: Sequence[Wanted], options: argparse.Namespace, logs: Path) -> Iterator[list[Booted]]:
    """All servers, booted side by side; those that do not come up are named and left out."""
    began = time.monotonic()
    with ExitStack() as stack:
        servers = []
        for number, one in enumerate(wanted):
            # Far apart: a server takes further ports above its own for its processes.
            servers.append(Booted(one, FIRST_PORT + 100 * number, options, logs))
            stack.callback(servers[-1].end)
        pending, up = list(servers), []
        while pending and time.monotonic() - began < BOOT_LIMIT_S:
            time.sleep(1)
            for server in list(pending):
                if server.ready():
                    print(f"{server.wanted.name}: ready after {time.monotonic() - began:.0f} s", flush=True)
                    up.append(server)
                    pending.remove(server)
                elif server.process.poll() is not None:
                    print(f"{server.wanted.name}: ended with {server.process.returncode} during boot", flush=True)
                    pending.remove(server)
        for server in pending:
            print(f"{server.wanted.name}: not ready after {BOOT_LIMIT_S:.0f} s", flush=True)
        yield [server for server in servers if server in up]


def measure(
    servers: Sequence[Booted], options: argparse.Namespace, out: Path, levels: Sequence[int], end: float
) -> None:
    """Rounds over all servers until one more would not end in time; each arm's file is written after each run."""
    requests = tuple(REQUESTS[LEVELS.index(level)] for level in levels)
    chosen = plan.Plan(tuple(levels), requests, options.rounds, options.warmups, OUTPUT_TOKENS, PROMPTS, 1, 60.0)
    tokenizers = {name: options.tokenizer or str(options.work / name / "target") for name in TARGETS}
    environment = fingerprint(options.env, local_server=True)
    with TemporaryDirectory() as scratch, Generator(options.env / "bin" / "python", Path(scratch)) as generator:
        recorders = []
        for server in servers:
            arm = Arm(server.wanted.name, ServerApi(server.url), tokenizers[server.wanted.target])
            path = out / f"{server.wanted.name}.json"
            recorders.append(Recorder(arm, chosen, generator, path, environment, _say))
        live = []
        for recorder in recorders:
            if _survives(recorder.warm_up):
                live.append(recorder)
        round_began, number = time.monotonic(), 0
        for turn, (which, level) in enumerate(chosen.order()):
            if which != number:
                number, took, round_began = which, time.monotonic() - round_began, time.monotonic()
                if time.monotonic() + took > end:
                    print(f"no time for round {which + 1}: one takes {took:.0f} s", flush=True)
                    break
            for recorder in live if turn % 2 == 0 else list(reversed(live)):
                if not _survives(recorder.measure, which, level):
                    live = [other for other in live if other is not recorder]
        for recorder in live:
            recorder.finish()
        if options.serial and options.phase == "sweep":
            _serial(servers, generator, out, environment, tokenizers, end)


def _serial(servers, generator, out, environment, tokenizers, end) -> None:  # type: ignore[no-untyped-def]
    """2,048 tokens, one stream, on the cheap pair, while there is time."""
    for server in servers:
        if server.wanted.target != "cheap" or time.monotonic() + 40 > end:
            continue
        name = "serial-" + server.wanted.name
        chosen = plan.serial(5, 1, plan.SERIAL_OUTPUT_TOKENS, PROMPTS, 60.0, "sglang")
        arm = Arm(name, ServerApi(server.url), tokenizers["cheap"])
        recorder = Recorder(arm, chosen, generator, out / f"{name}.json", environment, _say)

        def run(recorder: Recorder = recorder, chosen: plan.Plan = chosen) -> None:
            recorder.warm_up()
            for number, level in chosen.order():
                recorder.measure(number, level)
            recorder.finish()

        _survives(run)


def _survives(call, *arguments) -> bool:  # type: ignore[no-untyped-def]
    try:
        call(*arguments)
        return True
    except UserError as error:
        print(error, flush=True)
        return False


def answers(out: Path, validated: Path | None) -> list[dict[str, object]]:
    """Crossover, prediction and (with a folder of adaptive results) validation of every pair that was measured."""
    rows = []
    for target, models in TARGETS.items():
        baseline = _load(out / f"{target}-baseline.json")
        for draft in models.drafts:
            arm = _load(out / f"{target}-eagle3-{draft.acceptance:g}.json")
            if not baseline or not arm:
                continue
            found = crossover.analyse(baseline, arm)
            print(f"== {arm.arm}\n{crossover.render(found)}\n{adaptive.advise(found, arm).text}")
            row: dict[str, object] = {"pair": arm.arm, "answer": found.sentence()}
            length = costmodel.accept_length(draft.acceptance, STEPS)
            if baseline.server.step_times and arm.server.step_times:
                predicted = costmodel.predict(baseline, arm, found, length)
                print(costmodel.render(predicted))
                row["predicted side agrees at"] = [p.concurrency for p in predicted if p.agrees]
                row["predicted side differs at"] = [p.concurrency for p in predicted if p.agrees is False]
            third = _load(validated / f"{target}-adaptive-{draft.acceptance:g}.json") if validated else None
            if third:
                checked = validate.validate(baseline, arm, third)
                print(validate.render(checked))
                row["adaptive"] = {c.concurrency: c.verdict for c in checked}
            rows.append(row)
    return rows


def configurations(work: Path, out: Path) -> list[Wanted]:
    """The adaptive servers that follow from the sweep, their configuration files written."""
    wanted = []
    for target, models in TARGETS.items():
        baseline = _load(out / f"{target}-baseline.json")
        for draft in models.drafts:
            arm = _load(out / f"{target}-eagle3-{draft.acceptance:g}.json")
            if not baseline or not arm:
                continue
            found = crossover.analyse(baseline, arm)
            text = adaptive.advise(found, arm).config
            if not text:
                # Undecided or always: the medians choose, so that the third run has something to say.
                losing = [row.concurrency for row in found.levels if row.ratio < 1]
                text = adaptive.adaptive_config(min(losing, default=adaptive.BEYOND_ANY_BATCH), STEPS)
            path = work / f"adaptive-{target}-{draft.acceptance:g}.json"
            path.write_text(text)
            print(f"{path.name}: {json.dumps(json.loads(text))}")
            wanted.append(Wanted(target, draft, path))
    return wanted


def _load(path: Path) -> BenchResult | None:
    return load(path) if path.exists() else None


def _say(text: str) -> None:
    print(text, flush=True)


def _pack(folder: Path, target: Path) -> None:
    beside = target.with_suffix(".part")
    with tarfile.open(beside, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size < 8 << 20:
                archive.add(path, path.relative_to(folder))
    beside.replace(target)


def main() -> int:
    """Run a phase; results under WORK/results, and packed into OUT while it goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("models", "sweep", "adaptive"))
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--env", type=Path, default=Path(sys.prefix))
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--levels", type=int, nargs="*", help="of the sweep (default: all eight)")
    parser.add_argument(
        "--serial", action="store_true", help="after the sweep, 2,048 tokens of one stream (cheap pair)"
    )
    parser.add_argument("--mock", action="store_true")
    parser.add_argument("--tokenizer", help="for --mock")
    options = parser.parse_args()
    began = time.monotonic()
    if options.phase == "models":
        for name, models in TARGETS.items():
            if not (options.work / name).exists():
                size = write_models(options.work / name, models)
                print(f"{name}: {size / 1e9:.1f} GB, {time.monotonic() - began:.0f} s since start", flush=True)
        return 0
    results = options.work / "results"
    logs = options.work / f"logs-{options.phase}"
    for folder in (results, logs, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    if options.phase == "sweep":
        wanted = [Wanted(name, draft) for name, m in TARGETS.items() for draft in (None, *m.drafts)]
        levels: Sequence[int] = options.levels or LEVELS
    else:
        wanted, levels = configurations(options.work, results), (1, 10, 30, 100, 250)
    stop = threading.Event()

    def keep_packed() -> None:
        while not stop.wait(30):
            _pack(results, options.out / f"results-{options.phase}.tgz")
            _pack(logs, options.out / f"logs-{options.phase}.tgz")

    packer = threading.Thread(target=keep_packed, daemon=True)
    packer.start()
    try:
        with booted(wanted, options, logs) as servers:
            (logs / "commands.json").write_text(
                json.dumps({"environment": ENVIRONMENT} | {s.wanted.name: s.command for s in servers}, indent=1)
            )
            measure(servers, options, results, levels, began + options.seconds)
        said = answers(results, results if options.phase == "adaptive" else None)
        (results / f"answers-{options.phase}.json").write_text(json.dumps(said, indent=1))
    finally:
        stop.set()
        packer.join()
        _pack(results, options.out / f"results-{options.phase}.tgz")
        _pack(logs, options.out / f"logs-{options.phase}.tgz")
    print(f"{options.phase}: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
