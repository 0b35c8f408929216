#!/usr/bin/env python3
"""Boot a synthetic target without and with every draft and number of steps; all must answer as the baseline does.

    python benchmarks/boot_matrix.py --env ENV --models DIR --results DIR [--parallel N] [--steps 1 2 3 7] [--tp N]

DIR is made by ``cu130-stack models make``. The servers share one GPU, several at a time: what is measured is what they
answer and how many tokens each verification accepts, not how fast. Writes one report and one log a boot, and a summary.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from boots import SMALL, answer_counts, boot_command


def boot(options: argparse.Namespace, name: str, arguments: list[str]) -> dict:
    """Boot once; the report, or what the command said instead of one."""
    report = options.results / f"{name}.json"
    words = ["--models", str(options.models), "--tp", str(options.tp), "--timeout", "560", "--output", str(report)]
    words += ["--log", str(options.results / f"{name}.log"), "--share-gpu", *arguments]
    command = boot_command(options.stack, options.env, words, (*SMALL, *options.option))
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{name}: exit {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    if not report.is_file():
        return {"name": name, "outcome": "failed", "message": done.stderr[-2000:]}
    document = json.loads(report.read_text())["boots"][-1]
    document["name"] = name
    return document


def summary(document: dict, baseline: dict) -> dict:
    """What a reader wants to know of one boot."""
    row = {
        "name": document["name"],
        "outcome": document["outcome"],
        "seconds_to_ready": document.get("seconds_to_ready"),
    }
    answers = document.get("answers", [])
    if answers:
        plain = [answer["tokens"] for answer in baseline.get("answers", [])]
        row["equal_to_baseline"] = sum(a["tokens"] == other for a, other in zip(answers, plain, strict=False))
        row |= answer_counts(document)
    else:
        row["message"] = document.get("message") or [finding["message"] for finding in document["findings"]]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", default="cu130-pypi")
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 2, 3, 7])
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], help="a further server option of every boot")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    drafts = sorted(folder.name for folder in (options.models / "drafts").iterdir())
    jobs = [("baseline", ["--profile", "baseline"])]
    for steps in options.steps:
        for draft in drafts:
            changes = [f"speculative-num-steps={steps}", f"speculative-num-draft-tokens={steps + 1}"]
            arguments = ["--profile", "eagle3-chain", "--draft", draft]
            for change in changes:
                arguments += ["--option", change]
            jobs.append((f"{draft}-steps-{steps}", arguments))
    with ThreadPoolExecutor(options.parallel) as pool:
        documents = list(pool.map(lambda job: boot(options, *job), jobs))
    rows = [summary(document, documents[0]) for document in documents]
    (options.results / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))
    good = all(row["outcome"] == "passed" and row["equal_to_baseline"] == row["answers"] for row in rows)
    print("all passed" if good else "NOT all passed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
