"""Running uv: the one program that resolves, downloads and installs."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from abi_checks.errors import SourceError

CACHE_SECONDS = 30
"""Within which uv must say where its cache is."""


_ALWAYS = {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never"}
"""Nobody who has an environment judged or built asks for another Python on the machine."""


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
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    on_message: Callable[[str], None] | None = None,
) -> UvResult:
    """Run uv in ``folder`` and wait for it, at most ``timeout`` seconds; it is ended then, with all it started.

    uv's own configuration (indexes, mirrors, credentials, cache) applies, but it downloads no Python. ``environment``
    stands in place of this process's. ``held`` are descriptors that uv keeps open, so that a lock they carry outlives
    this process if it is killed while uv still writes. ``on_message`` gets uv's messages line by line.

    :raises SourceError: uv could not be started or did not end in time
    """
    output: list[str] = []
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as given:  # a pipe could fill while uv does not read
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                [find_uv_bin(), *arguments],
                cwd=folder,
                env={**(os.environ if environment is None else environment), **_ALWAYS},
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=tuple(held),
            )
        except OSError as error:  # UvNotFound is a FileNotFoundError
            raise SourceError(
                f"uv could not be started: {error}. It is a dependency of this project: install it again"
            ) from error

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
        hint = "; is the index reachable?" if arguments[0] == "pip" else ""
        raise SourceError(f"uv {' '.join(arguments[:2])} did not end within {timeout:g} s{hint}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return UvResult(process.returncode, "".join(output), "".join(lines))


def uv_cache(folder: Path) -> Path:
    """Where uv keeps what it has downloaded and unpacked, by the settings that count in ``folder``.

    :raises SourceError: uv does not say
    """
    result = run_uv(["cache", "dir"], folder=folder, timeout=CACHE_SECONDS)
    if result.returncode:
        raise SourceError(f"uv does not say where its cache is:\n{result.messages.strip()}")
    return Path(result.output.strip())
