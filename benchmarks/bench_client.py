"""What the measuring client costs and up to where it can be trusted, against a mock streaming server.

    python benchmarks/bench_client.py --env ENV --tokenizer DIR [--output FILE]

Two questions. First, what our layer takes from the load generator: the same command line at 250 streams, a chunk each
25 ms, started once as it is and once through the driver, turn about. Second, up to which rate of chunks the client's
time to first token is right: the mock lets every request in at once and answers its first token after a known time, so
whatever the client sees above that is the client's own (and the mock's, which shares the processor with it).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from stack.bench.generator import Generator  # noqa: E402
from stack.bench.measure import Arm, Recorder  # noqa: E402
from stack.bench.plan import Plan  # noqa: E402
from stack.bench.prompts import packaged  # noqa: E402
from stack.bench.schema import Environment  # noqa: E402
from stack.bench.server import ServerApi  # noqa: E402
from tests.stack.bench.mock_server import start  # noqa: E402

STREAMS = 250
STEP_S = 0.025
TOKENS = 200
LEVELS = (1, 10, 30, 50, 70, 100, 150, 250)
TTFT_LIMIT = 0.25
"""Share by which the client's median may differ from the true time before it counts as wrong."""


def overhead(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Throughput at 250 streams without and with the driver, in turns."""
    plan = Plan((STREAMS,), (STREAMS,), options.turns, 0, TOKENS, packaged(), 1, 120.0)
    plain: list[float] = []
    with (
        start(scratch, "--fixed", str(STEP_S)) as url,
        Generator(options.env / "bin" / "python", scratch) as generator,
    ):
        recorder = Recorder(
            Arm("driven", ServerApi(url), options.tokenizer), plan, generator, scratch / "r.json", Environment(), print
        )
        for turn in range(options.turns):
            recorder.measure(turn, STREAMS)
            plain.append(_plain(options, url, plan, scratch, turn))
            print(f"plain: {plain[-1]:.1f} tok/s", flush=True)
    driven = [run.throughput for run in recorder.result.runs if run.usable]
    return {
        "streams": STREAMS,
        "offered_tok_s": STREAMS / STEP_S,
        "plain_tok_s": plain,
        "driven_tok_s": driven,
        "rejected": [list(run.rejected) for run in recorder.result.runs if not run.usable],
        "median_plain": median(plain),
        "median_driven": median(driven),
        "overhead": round(1 - median(driven) / median(plain), 4),
    }


def _plain(options: argparse.Namespace, url: str, plan: Plan, scratch: Path, turn: int) -> float:
    """One run of ``python -m sglang.bench_serving`` and nothing else."""
    output = scratch / f"plain-{turn}.jsonl"
    command = [str(options.env / "bin" / "python"), "-m", "sglang.bench_serving", "--backend", "sglang"]
    command += ["--base-url", url, "--warmup-requests", "0", "--max-concurrency", str(STREAMS), "--disable-tqdm"]
    command += ["--tokenizer", options.tokenizer, "--output-file", str(output), "--output-details"]
    command += plan.prompts.arguments(STREAMS, TOKENS, turn, scratch)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (scratch / "plain.log").open("wb") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, timeout=180, env=environment)
    return float(json.loads(output.read_text())["output_throughput"])


def first_tokens(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """The client's median time to first token at each level beside the true one."""
    rows = []
    # The prefill of a request takes 2 ms and all that wait go in one step, so the first wave's k-th level is known.
    with Generator(options.env / "bin" / "python", scratch) as generator:
        for level in LEVELS:
            true_ms = 1000 * 0.002 * level
            plan = Plan((level,), (level,), 3, 0, TOKENS, packaged(), 1, 120.0)
            with start(scratch, "--fixed", str(STEP_S), "--prefill", "0.002") as url:
                arm = Arm("ttft", ServerApi(url), options.tokenizer)
                recorder = Recorder(arm, plan, generator, scratch / "t.json", Environment(), print)
                for turn in range(3):
                    recorder.measure(turn, level)
            runs = recorder.result.runs
            seen = median(run.ttft.p50 for run in runs if run.ttft)
            rate = median(run.chunk_rate or 0.0 for run in runs)
            wrong = abs(seen - true_ms) > max(TTFT_LIMIT * true_ms, 10.0)
            rows.append(
                {"level": level, "chunks_per_s": rate, "true_ms": true_ms, "client_p50_ms": seen, "wrong": bool(wrong)}
            )
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure and print; write the figures where --output says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        document = {
            "command": "python benchmarks/bench_client.py --env ENV --tokenizer DIR",
            "date": time.strftime("%Y-%m-%d"),
            "cores": os.cpu_count(),
            "overhead": overhead(options, scratch),
            "first_tokens": first_tokens(options, scratch),
        }
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
