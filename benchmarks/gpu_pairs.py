"""Where speculation stops paying, on one GPU, for synthetic pairs of target and draft.

Three pairs share a costly target (about 27 GB of weights, so that a decode step is long beside the cost of drafting)
and differ in the draft's acceptance: 0.5, 0.8 and 1. The fourth has a cheap target, where speculation cannot win. All
servers of a phase are up side by side, one is measured at a time, and the arms take turns level by level.

    python benchmarks/gpu_pairs.py models WORK            write the models (27 GB)
    python benchmarks/gpu_pairs.py sweep WORK RESULTS     baselines and EAGLE-3 at every level; crossover and prediction
    python benchmarks/gpu_pairs.py adaptive WORK RESULTS  the settings that follow from RESULTS, measured

``--pairs`` takes some of the pairs, so that several GPUs can share the work (each with its own RESULTS and ports);
``--levels`` some of the levels, for more rounds where a few did not decide (their 95 % are shared out among fewer).
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
from stack.synthetic.tokenizer import SPECIALS  # noqa: E402

STEPS = 3
TARGETS = {
    "costly": SyntheticModels(
        "llama", Shape(34, 4096, 28672, 512, 8), 0, tuple(Draft(DraftForm.FULL, a) for a in (0.5, 0.8, 1.0))
    ),
    "cheap": SyntheticModels("llama", Shape(8, 512, 1024, 512), 0, (Draft(DraftForm.FULL, 0.5),)),
}
ADAPTIVE_LEVELS = (1, 10, 30, 100, 250)
LEVELS = plan.SWEEP_LEVELS
REQUESTS = (3, 5, 10, 20, 120, 280, 400, 1000)
"""Four times the concurrency where a batch lasts a second or two: the last of the four does not count (full load)."""
OUTPUT_TOKENS = 192
"""Long enough that the wave's start, when the server takes some 5 ms a request to let it in, does not decide."""
BOOT_LIMIT_S = 600.0
"""The first boot on a machine compiles its kernels, which takes minutes."""
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
TYPICAL = 0.015


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and one of its drafts."""

    target: str
    draft: Draft

    @property
    def name(self) -> str:
        return f"{self.target}-{self.draft.acceptance:g}"

    @property
    def accept_length(self) -> float:
        """Tokens of a verification, as the draft prescribes them."""
        return costmodel.accept_length(self.draft.acceptance, STEPS)


PAIRS = {pair.name: pair for name, models in TARGETS.items() for pair in (Pair(name, d) for d in models.drafts)}


def typical_prompts() -> prompts.Prompts:
    """Prompts after which every draft is right as often as it should be, to within ``TYPICAL``.

    A request's accepted tokens follow from the last token of its prompt. Over 192 tokens they scatter by some per cent
    around the prescribed acceptance, which a run of a few requests at low concurrency could not average out. The
    tokenizer joins nothing to digits, capitals and signs, so a last character of these is a token of its own.
    """
    endings = []
    for character in (chr(code) for code in range(0x21, 0x7F)):
        token = len(SPECIALS) + ord(character)
        lengths = [
            (TARGETS[pair.target].predict(token, OUTPUT_TOKENS, STEPS, pair.draft).accept_length, pair.accept_length)
            for pair in PAIRS.values()
        ]
        joined = character.isalpha() and character.islower()
        if not joined and all(abs(one / prescribed - 1) <= TYPICAL for one, prescribed in lengths):
            endings.append(character)
    return prompts.Prompts("typical", tuple(f"note {character}" for character in endings))


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
        length = Pair(wanted.target, wanted.draft).accept_length
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
            servers.append(Booted(one, options.first_port + 100 * number, options, logs))
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
    chosen = plan.Plan(
        tuple(levels), requests, options.rounds, options.warmups, OUTPUT_TOKENS, typical_prompts(), 1, 60.0
    )
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


def _survives(call, *arguments) -> bool:  # type: ignore[no-untyped-def]
    try:
        call(*arguments)
        return True
    except UserError as error:
        print(error, flush=True)
        return False


def answers(results: Path, pairs: Sequence[Pair], validate_too: bool) -> list[dict[str, object]]:
    """Crossover, prediction and (where there is an adaptive result) validation of every pair that was measured."""
    rows = []
    for pair in pairs:
        baseline, arm = _arms(results, pair)
        if not baseline or not arm:
            continue
        found = crossover.analyse(baseline, arm)
        print(f"== {arm.arm}\n{crossover.render(found)}\n{adaptive.advise(found, arm).text}")
        row: dict[str, object] = {"pair": pair.name, "answer": found.sentence()}
        if baseline.server.step_times and arm.server.step_times:
            predicted = costmodel.predict(baseline, arm, found, pair.accept_length)
            print(costmodel.render(predicted))
            row["predicted side agrees at"] = [p.concurrency for p in predicted if p.agrees]
            row["predicted side differs at"] = [p.concurrency for p in predicted if p.agrees is False]
        third = _load(results / f"{pair.target}-adaptive-{pair.draft.acceptance:g}.json") if validate_too else None
        if third:
            checked = validate.validate(baseline, arm, third)
            print(validate.render(checked))
            row["adaptive"] = {c.concurrency: c.verdict for c in checked}
        rows.append(row)
    return rows


def configurations(results: Path, pairs: Sequence[Pair]) -> list[Wanted]:
    """The adaptive servers that follow from the sweep, their configuration files written beside its results."""
    wanted = []
    for pair in pairs:
        baseline, arm = _arms(results, pair)
        if not baseline or not arm:
            continue
        found = crossover.analyse(baseline, arm)
        text = adaptive.advise(found, arm).config
        if not text:
            # Undecided or always: the medians choose, so that the third run has something to say.
            losing = [row.concurrency for row in found.levels if row.ratio < 1]
            text = adaptive.adaptive_config(min(losing, default=adaptive.BEYOND_ANY_BATCH), STEPS)
        path = results / f"{pair.name}-speculative-adaptive-config.json"
        path.write_text(text)
        print(f"{path.name}: {json.dumps(json.loads(text))}")
        wanted.append(Wanted(pair.target, pair.draft, path.absolute()))
    return wanted


def _arms(results: Path, pair: Pair) -> tuple[BenchResult | None, BenchResult | None]:
    """Baseline and EAGLE-3 of a pair."""
    arm = f"{pair.target}-eagle3-{pair.draft.acceptance:g}.json"
    return _load(results / f"{pair.target}-baseline.json"), _load(results / arm)


def _load(path: Path) -> BenchResult | None:
    return load(path) if path.exists() else None


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run a phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("models", "sweep", "adaptive"))
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--env", type=Path, default=Path(sys.prefix))
    parser.add_argument("--pairs", nargs="*", choices=sorted(PAIRS), default=list(PAIRS))
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--levels", type=int, nargs="*", choices=LEVELS)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--first-port", type=int, default=31000)
    parser.add_argument("--mock", action="store_true")
    parser.add_argument("--tokenizer", help="for --mock")
    options = parser.parse_args()
    began = time.monotonic()
    pairs = [PAIRS[name] for name in options.pairs]
    targets = list(dict.fromkeys(pair.target for pair in pairs))
    if options.phase == "models":
        for name in targets:
            if not (options.work / name).exists():
                size = write_models(options.work / name, TARGETS[name])
                print(f"{name}: {size / 1e9:.1f} GB, {time.monotonic() - began:.0f} s since start", flush=True)
        return 0
    if options.results is None:
        parser.error(f"{options.phase} needs a folder for RESULTS")
    logs = options.results / f"logs-{options.phase}"
    logs.mkdir(parents=True, exist_ok=True)
    if options.phase == "sweep":
        wanted = [Wanted(name) for name in targets] + [Wanted(pair.target, pair.draft) for pair in pairs]
        levels: Sequence[int] = options.levels or LEVELS
    else:
        wanted, levels = configurations(options.results, pairs), options.levels or ADAPTIVE_LEVELS
    with booted(wanted, options, logs) as servers:
        (logs / "commands.json").write_text(
            json.dumps({"environment": ENVIRONMENT} | {s.wanted.name: s.command for s in servers}, indent=1)
        )
        measure(servers, options, options.results, levels, began + options.seconds)
    said = answers(options.results, pairs, options.phase == "adaptive")
    (options.results / f"answers-{options.phase}.json").write_text(json.dumps(said, indent=1))
    print(f"{options.phase}: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
