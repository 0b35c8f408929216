"""Write the figures of the proven host, taken from its record, as result files: python benchmarks/record_reference.py

The host: Kimi-K2.5 int4 on 8 RTX PRO 6000 Blackwell (PCIe, SM120), tensor parallel over all 8, 2,048 output tokens, one
stream unless said. Nothing was measured for these files; they are there to be compared with.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from stack.bench.schema import BenchResult, Environment, Gpu, PlanRecord, Run, Server, save  # noqa: E402

FOLDER = ROOT / "docs" / "evidence" / "record"
SOURCE = "figures written down at the proven host (Kimi-K2.5 int4, TP 8, 2,048 tokens); not measured by this program"
COMMON = {
    "tp_size": "8",
    "attention_backend": '"flashinfer"',
    "disable_custom_all_reduce": "true",
}
EAGLE3 = {
    "speculative_algorithm": '"EAGLE3"',
    "speculative_num_steps": "2",
    "speculative_eagle_topk": "4",
    "speculative_num_draft_tokens": "16",
}
FUSION = {"enable_flashinfer_allreduce_fusion": "true"}
SWEEP = {
    1: (77.5, 77.7, 6.6),
    2: (125.1, 62.9, 8.2),
    5: (183.2, 37.3, 13.8),
    10: (239.6, 24.8, 20.8),
    30: (299.5, 10.4, 49.6),
    70: (337.7, 5.7, 96.2),
    100: (338.8, 4.1, 134.3),
    250: (340.9, 2.9, 243.6),
}
"""Concurrency: throughput (tok/s), per request (tok/s), mean latency (s)."""
UNKNOWN = ("number of requests, versions of the packages, clocks and lock are not in the record",)
GPUS = (Gpu("NVIDIA RTX PRO 6000 Blackwell", "", "", "", ""),) * 8


def run(concurrency: int, number: int, throughput: float, request_rate: float, notes: tuple[str, ...] = ()) -> Run:
    """A run of which only the speed is known."""
    return Run(
        concurrency, number, "", 0.0, 0, 0, 0, throughput, request_rate, None, None, None, None, None, None, notes=notes
    )


def result(arm: str, version: str, settings: dict[str, str], runs: list[Run]) -> BenchResult:
    """One arm of the record."""
    levels = tuple(sorted({one.concurrency for one in runs}))
    rounds = max(one.round for one in runs) + 1
    plan = PlanRecord(levels, (0,) * len(levels), rounds, 0, 2048, "not recorded", 0, 0.0)
    environment = Environment({}, "", (), GPUS, "590.48.01", "", 0, UNKNOWN)
    return BenchResult(arm, "record", "", True, plan, environment, Server(version, settings), tuple(runs), SOURCE)


def single(values: list[float], note: str = "") -> list[Run]:
    """One stream, a run a value."""
    return [run(1, number, value, value, (note,) if note else ()) for number, value in enumerate(values)]


def main() -> None:
    """Write all files."""
    queue = (
        "queueing: with speculation SGLang runs 48 requests at once unless told otherwise, and nothing else is recorded"
    )
    sweep = [
        run(c, 0, total, each, (f"mean latency {latency} s", *((queue,) if c > 48 else ())))
        for c, (total, each, latency) in SWEEP.items()
    ]
    after, before = "0.5.9", ""
    for one in (
        result("baseline-before-upgrade", before, COMMON, single([89.5])),
        result("eagle3-before-upgrade", before, COMMON | EAGLE3, single([54.1])),
        result("baseline", after, COMMON, single([92.6])),
        result("baseline-triton", after, COMMON | {"attention_backend": '"triton"'}, single([83.9])),
        result("baseline-fusion-flag", after, COMMON | FUSION, single([92.7])),
        result("baseline-symmetric-memory", after, COMMON | {"enable_torch_symm_mem": "true"}, single([92.6])),
        result("eagle3-5-runs", after, COMMON | FUSION | EAGLE3, single([97.5, 107.7, 88.6, 101.5, 95.6])),
        result("eagle3-10-runs", after, COMMON | FUSION | EAGLE3, single([96.1], "mean of 10 runs, 87.5 to 103.5")),
        result("eagle3-sweep", after, COMMON | FUSION | EAGLE3, sweep),
    ):
        save(one, FOLDER / f"{one.arm}.json")


if __name__ == "__main__":
    main()
