"""A requirement judged from an index without storing its wheels: seconds, and bytes fetched.

usage: python benchmarks/requirement.py WHEEL... [--rate 100] [--runs 3]

The wheels are served by an index on this machine (PEP 503, with hashes) that sends at most ``--rate`` million bytes a
second over all connections, so that the figure does not depend on anyone's line. The first wheel's distribution is the
target, the others are given with ``--with``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packaging.utils import parse_wheel_filename

PIECE = 1 << 18


class Index(ThreadingHTTPServer):
    """The wheels, the line's rate in bytes a second, and what was sent."""

    def __init__(self, wheels: list[Path], rate: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels = {wheel.name: wheel for wheel in wheels}
        self.hashes: dict[str, str] = {}
        for wheel in wheels:
            with wheel.open("rb") as file:
                self.hashes[wheel.name] = hashlib.file_digest(file, "sha256").hexdigest()
        self.rate = rate
        self.sent = 0
        self.free_at = 0.0
        self.lock = threading.Lock()

    def wait_for_line(self, length: int) -> None:
        """Wait until the line has carried what was sent before, and count these bytes."""
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + length / self.rate
            until = self.free_at
            self.sent += length
        time.sleep(max(0.0, until - time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    """The simple API and ranges of files."""

    protocol_version = "HTTP/1.1"
    server: Index

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name in self.server.wheels:
            self._file(self.server.wheels[name])
            return
        wanted = self.path.removesuffix("/").rpartition("/")[2]
        links = "".join(
            f'<a href="/files/{wheel}#sha256={self.server.hashes[wheel]}">{wheel}</a>'
            for wheel in self.server.wheels
            if parse_wheel_filename(wheel)[0] == wanted
        )
        self.send_response(200 if links else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(links)))
        self.end_headers()
        self.wfile.write(links.encode())

    def _file(self, path: Path) -> None:
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(wanted[1]), min(int(wanted[2]) + 1, size)) if wanted else (0, size)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            for at in range(start, end, PIECE):
                length = min(PIECE, end - at)
                self.server.wait_for_line(length)
                self.wfile.write(file.read(length))

    def log_message(self, *_: object) -> None:
        """Nothing: the report is the output."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--rate", type=float, default=100, help="million bytes a second")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    held = 0
    requirements = []
    for wheel in options.wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        requirements.append(f"{name}=={version}")
        with zipfile.ZipFile(wheel) as archive:
            held += sum(info.compress_size for info in archive.infolist() if ".so" in info.filename)
    index = Index(options.wheels, options.rate * 1e6)
    threading.Thread(target=index.serve_forever, daemon=True).start()
    command = [sys.executable, "-m", "abi_checks", "--no-cache", requirements[0]]
    command += [word for requirement in requirements[1:] for word in ("--with", requirement)]
    url = f"http://127.0.0.1:{index.server_port}/simple/"
    times = []
    for _ in range(options.runs):
        index.sent = 0
        with tempfile.TemporaryDirectory() as scratch:
            environment = {**os.environ, "UV_DEFAULT_INDEX": url, "UV_CACHE_DIR": f"{scratch}/uv", "TMPDIR": scratch}
            environment["no_proxy"] = "127.0.0.1"
            begin = time.perf_counter()
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            times.append(time.perf_counter() - begin)
            left = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file())
        if done.returncode not in (0, 1):
            sys.exit(done.stderr)
    print(" ".join(command[3:]))
    print(f"exit code {done.returncode}; median {statistics.median(times):.1f} s, {min(times):.1f} to {max(times):.1f}")
    print(f"at {options.rate:.0f} MB/s the compressed objects take {held / options.rate / 1e6:.1f} s")
    print(f"sent {index.sent:,} bytes; the objects hold {held:,}; left on disk afterwards: {left:,} bytes, uv's cache")


if __name__ == "__main__":
    main()
