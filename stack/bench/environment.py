"""The fingerprint kept with every result: which lock, which patches, which GPUs at which clocks."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
from pathlib import Path

from stack.bench.schema import Environment, Gpu
from stack.serve.plan import installed_versions

_QUERY = "name,clocks.sm,clocks.max.sm,power.limit,memory.total,driver_version"


def fingerprint(environment: Path, local_server: bool) -> Environment:
    """Of the environment folder that serves and loads; GPUs only where the server runs on this host."""
    unknown = []
    versions = dict(installed_versions(environment / "bin" / "python"))
    lock, patches = _build(environment)
    if not lock:
        unknown.append("lock: the environment is no build of this project (no manifest.json beside it)")
    gpus: tuple[Gpu, ...] = ()
    driver = topology = ""
    if local_server:
        gpus, driver, why = _gpus()
        topology = _topology(len(gpus))
        if why:
            unknown.append(f"GPUs: {why}")
    else:
        unknown.append("GPUs: the server runs on another host")
    return Environment(
        dict(sorted(versions.items())), lock, patches, gpus, driver, topology, os.cpu_count() or 0, tuple(unknown)
    )


def _build(environment: Path) -> tuple[str, tuple[str, ...]]:
    """(sha256 of the lock, names of the patches) from the manifest beside a built environment."""
    try:
        manifest = json.loads((environment.resolve().parent / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["lock"]["sha256"]), tuple(str(row["name"]) for row in manifest.get("patches", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return "", ()


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """(GPUs, driver version, why they are not known)."""
    text, why = _run("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if len(row) == 6]
    return tuple(Gpu(*row[:5]) for row in rows), rows[0][5] if rows else "", why


def _topology(gpus: int) -> str:
    """Links between several GPUs, as a digest of ``nvidia-smi topo -m``; "" for a single GPU."""
    text = _run("nvidia-smi", "topo", "-m")[0] if gpus > 1 else ""
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


def _run(*command: str) -> tuple[str, str]:
    """(standard output, why there is none)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, start_new_session=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{command[0]}: {getattr(error, 'strerror', None) or 'no answer within 30 s'}"
    return (done.stdout, "") if done.returncode == 0 else ("", f"{command[0]}: exit code {done.returncode}")
