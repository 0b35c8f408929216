"""A port for the server, and who holds it where it is taken."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from abi_checks.errors import UsageError
from stack.serve.process import command_line

HOST = "127.0.0.1"
_LISTENING = "0A"  # TCP_LISTEN of <netinet/tcp.h>, as /proc/net/tcp writes it
_LOWEST = 20_000
"""Free ports are sought from here on: below lie most of those that services have been given."""
_TRIES = 50


def choose_port(asked: int | None) -> int:
    """``asked``, or a free port. Raises UsageError, with the process that listens there, where it is taken.

    A server listens long after its port was chosen. Hence none of those is chosen which the kernel gives to outgoing
    connections and to whoever binds port 0, as other servers do while they start.
    """
    if asked is None:
        low, high = _LOWEST, _first_ephemeral()
        for port in random.sample(range(low, high), _TRIES) if high - low >= _TRIES else ():
            with suppress(OSError):
                return _bound(port)
    try:
        return _bound(asked or 0)
    except PermissionError as error:
        raise UsageError(f"port {asked}: this user may not listen there; choose one above 1023") from error
    except (OSError, OverflowError) as error:
        holders = ", ".join(f"process {pid} ({command_line(pid)})" for pid in listeners(asked or 0))
        raise UsageError(
            f"port {asked} cannot be used: {holders or error}; leave --port out to take a free one, or name another"
        ) from error


def _first_ephemeral() -> int:
    """The first port that the kernel itself chooses (ip(7), ip_local_port_range); 0 where it does not say."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bound(port: int) -> int:
    """The port that a socket got which was bound to ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return int(probe.getsockname()[1])


def listeners(port: int) -> list[int]:
    """Processes, as far as this user can see them, that listen on a TCP port."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    return sorted(
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _holds(entry, sockets)
    )


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(file.readlink()) in sockets for file in (process / "fd").iterdir())
    except OSError:
        return False
