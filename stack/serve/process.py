"""A server process that leaves nothing behind."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError
from stack.serve import keeper

_GRACE = 5.0
"""Seconds that a server gets to end by itself after SIGTERM."""
_START = 10.0
"""Seconds within which the keeper must have started the server."""
_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink"})


@dataclass(slots=True)
class ServerProcess:
    """A running server below its keeper. ``exit_code`` is None while it runs; negative is a signal's number."""

    pid: int
    keeper: subprocess.Popen[bytes]
    log: Path
    exit_code: int | None = None

    def gone(self) -> bool:
        """Whether the server has ended by itself; its exit code is known then."""
        assert self.keeper.stdout is not None
        if self.exit_code is None and select.select([self.keeper.stdout], [], [], 0)[0]:
            line = self.keeper.stdout.readline().decode(errors="replace").split()
            self.exit_code = int(line[1]) if len(line) == 2 and line[0] == "exit" else -9
        return self.exit_code is not None

    def processes(self) -> list[int]:
        """Everything that belongs to the server."""
        return keeper.descendants(self.keeper.pid)

    def compiling(self) -> bool:
        """Whether a CUDA compiler runs below the server: kernels are being compiled on first use."""
        return any(process_name(pid) in _COMPILERS for pid in self.processes())


@contextmanager
def running_server(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[ServerProcess]:
    """Start a server and end it, with all it has started, when the block is left in whatever way.

    Its output goes to ``log``, which is emptied first.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise SourceError(f"{log}: the server's log cannot be written: {error.strerror}") from error
    watcher = subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, str(log), str(_GRACE), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    assert watcher.stdin and watcher.stdout and watcher.stderr
    try:
        ready = select.select([watcher.stdout], [], [], _START)[0]
        words = watcher.stdout.readline().decode(errors="replace").split() if ready else []
        if len(words) != 2 or words[0] != "pid":
            watcher.stdin.close()
            reason = watcher.stderr.read(4096).decode(errors="replace").strip().splitlines() if ready else []
            raise SourceError(
                f"the server could not be started ({command[0]}): {reason[-1] if reason else 'no answer'}"
            )
        yield ServerProcess(int(words[1]), watcher, log)
    finally:
        watcher.stdin.close()
        _wait(watcher)
        watcher.stdout.close()
        watcher.stderr.close()


def _wait(watcher: subprocess.Popen[bytes]) -> None:
    """Wait for the keeper, whose end means that nothing is left; a second interrupt does not cut this short."""
    deadline = time.monotonic() + _GRACE + 60.0
    while True:
        try:
            watcher.wait(timeout=max(0.1, deadline - time.monotonic()))
            return
        except KeyboardInterrupt:
            continue
        except subprocess.TimeoutExpired as error:
            left = ", ".join(f"{pid} ({process_name(pid)})" for pid in keeper.descendants(watcher.pid))
            raise SourceError(
                f"processes of the server cannot be ended, they may hang in the kernel: {left}"
            ) from error


def process_name(pid: int) -> str:
    """The name of a process as the kernel has it (at most 15 characters), or "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """The command line of a process, cut to 120 characters; its name where it has none, "" where it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return words[:120] or process_name(pid)
