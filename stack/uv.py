"""Running uv: the one program that resolves, downloads and installs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uv as uv_package

from abi_checks.errors import SourceError


@dataclass(frozen=True, slots=True)
class UvResult:
    """How one call of uv ended; ``messages`` is what it wrote to standard error."""

    returncode: int
    output: str
    messages: str


def run_uv(
    arguments: Sequence[str],
    *,
    folder: Path,
    timeout: float,
    settings: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    on_message: Callable[[str], None] | None = None,
) -> UvResult:
    """Run uv in ``folder`` and wait for it, at most ``timeout`` seconds.

    uv's own configuration (indexes, mirrors, credentials, cache) applies; an active virtual environment does not, and
    uv never downloads a Python. ``settings`` are environment variables for this call. ``held`` are descriptors that uv
    keeps open, so that a lock they carry outlives this process if it is killed while uv still writes. ``on_message``
    gets uv's messages line by line.

    :raises SourceError: uv could not be started or did not end in time
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    environment |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    environment |= settings or {}
    try:
        process = subprocess.Popen(
            [uv_package.find_uv_bin(), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=tuple(held),
        )
    except OSError as error:
        raise SourceError(
            f"uv could not be started: {error}. It is a dependency of this project: install it again"
        ) from error
    lines: list[str] = []
    output: list[str] = []

    def read_messages() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if on_message and line.strip():
                on_message(line.strip())

    def read_output() -> None:
        assert process.stdout is not None
        output.append(process.stdout.read())

    readers = [threading.Thread(target=job, daemon=True) for job in (read_messages, read_output)]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout)
        for reader in readers:
            reader.join(5)
    except subprocess.TimeoutExpired:
        raise SourceError(f"uv {' '.join(arguments[:3])} did not end within {timeout:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return UvResult(process.returncode, "".join(output), "".join(lines))


def hash_mismatch(messages: str) -> tuple[str, str, str] | None:
    """The requirement, the hash expected and the hash found, where uv refused a file for its hash."""
    match = re.search(
        r"Hash mismatch for `([^`]+)`\s+Expected:\s+((?:sha256:[0-9a-f]{64}\s+)+)Computed:\s+sha256:([0-9a-f]{64})",
        messages,
    )
    if not match:
        return None
    expected = " or ".join(word.removeprefix("sha256:") for word in match[2].split())
    return match[1], expected, match[3]


def cache_folder() -> Path:
    """Where uv keeps what it downloaded and unpacked."""
    result = run_uv(["cache", "dir"], folder=Path("/"), timeout=30)
    if result.returncode:
        raise SourceError(f"uv does not say where its cache is:\n{result.messages.rstrip()}")
    return Path(result.output.strip())
