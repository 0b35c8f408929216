"""An HTTP server on this machine that serves ranges of files, and misbehaves on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, how, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    ranges: bool = True
    status: int = 0
    """Answer everything with this status, where it isn't 0."""
    cut_short: int = 0
    """The next so many answers end after half of their bytes."""
    etag: str = '"1"'
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(path, Range header) of each request."""
    credentials: list[str] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[Site]:
    """A site on a free port of the loopback interface."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            site.requests.append((self.path, wanted))
            site.credentials.append(self.headers.get("Authorization", ""))
            data = site.files.get(self.path)
            if site.status or data is None:
                self.send_response(site.status or 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
            if match and site.ranges:
                start, end = int(match[1]), min(int(match[2]) + 1, len(data))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
                data = data[start:end]
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", site.etag)
            if self.path.endswith("/"):
                self.send_header("Content-Type", "text/html")
            self.end_headers()
            if site.cut_short:
                site.cut_short -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.send_response(405)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that closes its connection early is what some of the tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
