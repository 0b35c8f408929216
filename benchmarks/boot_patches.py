#!/usr/bin/env python3
"""Boot a KimiK25-shaped pair on an environment as released and as patched: does what the contracts say happen?

    python benchmarks/boot_patches.py --models DIR --results DIR --env released=ENV --env patched=ENV

DIR is made by ``cu130-stack models make DIR --architecture kimi-k25``; the environments hold the same SGLang and differ
in what ``cu130-stack patch`` has applied. On each a baseline and an EAGLE-3 server are booted, all at the same time on
one GPU. Writes reports and logs, and ``summary.json``: what the source said before, and what was seen.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from boots import answer_counts, boot_command

PROFILES = ("baseline", "eagle3-chain")


def patches(environment: Path) -> str:
    """What ``patch status`` says of an environment."""
    command = [sys.executable, "-m", "stack", "patch", "status", str(environment)]
    return subprocess.run(command, capture_output=True, text=True).stdout


def boot(options: argparse.Namespace, name: str, environment: Path, profile: str) -> dict:
    """One boot: its outcome, and the diagnosis of one that failed."""
    title = f"{name}-{profile}"
    report = options.results / f"{title}.json"
    words = ["--models", str(options.models), "--profile", profile, "--timeout", str(options.timeout)]
    words += ["--share-gpu", "--output", str(report), "--log", str(options.results / f"{title}.log")]
    command = boot_command(options.stack, environment, words, options.option)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{title}: exit {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    if not report.is_file():
        return {"exit": done.returncode, "said": done.stderr[-2000:]}
    document = json.loads(report.read_text())["boots"][-1]
    row = {"exit": done.returncode, "outcome": document["outcome"], "seconds_to_ready": document["seconds_to_ready"]}
    row["findings"] = [f"{finding['check']}: {finding['message']}" for finding in document["findings"]]
    row["diagnosis"] = document["diagnosis"]
    return row | (answer_counts(document) if document["answers"] else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", default="cu128")
    parser.add_argument("--env", action="append", required=True, metavar="NAME=ENV")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--option", action="append", default=[], help="a server option of every boot")
    parser.add_argument("--timeout", type=float, default=400.0)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    environments = {name: Path(path) for name, _, path in (entry.partition("=") for entry in options.env)}
    with ThreadPoolExecutor(len(environments) * len(PROFILES)) as pool:
        booted = {
            (name, profile): pool.submit(boot, options, name, path, profile)
            for name, path in environments.items()
            for profile in PROFILES
        }
        summary = {
            name: {
                "patches": patches(path).splitlines(),
                **{profile: booted[name, profile].result() for profile in PROFILES},
            }
            for name, path in environments.items()
        }
    (options.results / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
