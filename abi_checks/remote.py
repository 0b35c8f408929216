"""The bytes of a file on an HTTP server, read over ranges (RFC 9110, section 14) and never stored."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import urllib3

from abi_checks.errors import SourceError

STEP = 8 << 20
"""Bytes asked for in one request while streaming: large enough that the round trip hardly counts at 100 MB/s."""
WINDOW = 256 << 10
"""Small reads fetch this much at once: the end of a wheel, its directory and its metadata lie close together."""
_ATTEMPTS = 4
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def _pool(url: str) -> urllib3.PoolManager:
    """Connections to the host of ``url``, through the proxy that the environment names for it, if any."""
    parts = urlsplit(url)
    retries = urllib3.Retry(total=_ATTEMPTS, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False)
    timeout = urllib3.Timeout(connect=15, read=60)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        return urllib3.ProxyManager(proxy, retries=retries, timeout=timeout)
    return urllib3.PoolManager(retries=retries, timeout=timeout)


class RemoteFile:
    """A file behind an ``http`` or ``https`` URL; :attr:`fetched` counts the bytes of it that were transferred.

    Raises SourceError when the host can't be reached, has no such file, doesn't serve ranges, or changes the file
    between two requests.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        self._headers = {"Accept-Encoding": "identity"}
        if parts.username:
            secret = f"{urllib.request.unquote(parts.username)}:{urllib.request.unquote(parts.password or '')}"
            self._headers |= urllib3.make_headers(basic_auth=secret)
        self._pool = _pool(self.url)
        self.fetched = 0
        self._identity: tuple[int, str] | None = None
        self._window = (0, b"")
        self._window = (0, self._get(0, 1))
        assert self._identity is not None
        self.size = self._identity[0]

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`abi_checks.bytesource.ByteSource`; raises SourceError when the transfer fails."""
        if offset < 0 or offset >= self.size or length <= 0:
            return b""
        end = min(offset + length, self.size)
        start, data = self._window
        if not (start <= offset and end <= start + len(data)):
            # Near the end, the window reaches backwards: what is read next is the directory in front of the end record.
            start = min(offset, max(0, self.size - WINDOW))
            self._window = (start, data) = (start, self._get(start, min(self.size, max(end, start + WINDOW))))
        return data[offset - start : end - start]

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes ``start .. end`` in order; the next piece is fetched while the caller works on the last."""
        end = min(end, self.size)
        offsets = range(start, end, STEP)
        if not offsets:
            return
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as ahead:
            pending = ahead.submit(self._get, start, min(start + STEP, end))
            for offset in offsets:
                data = pending.result()
                if offset + STEP < end:
                    pending = ahead.submit(self._get, offset + STEP, min(offset + 2 * STEP, end))
                yield data

    def _get(self, start: int, end: int) -> bytes:
        for attempt in range(_ATTEMPTS):
            try:
                response = self._pool.request("GET", self.url, headers={**self._headers, "Range": f"bytes={start}-{end - 1}"}, preload_content=False)
                try:
                    self._check(response, start, end)
                    data = response.read(end - start, decode_content=False)
                finally:
                    response.drain_conn()
                    response.release_conn()
            except urllib3.exceptions.HTTPError as error:
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise SourceError(f"{self.url}: cannot be read: {_reason(error)}; check the network, or download the file and name it instead") from error
            self.fetched += len(data)
            if len(data) == end - start:
                return data
        raise SourceError(f"{self.url}: the server sends fewer bytes than it announces ({len(data)} of {end - start} at {start})")

    def _check(self, response: urllib3.BaseHTTPResponse, start: int, end: int) -> None:
        """Whether an answer holds the range asked for, of the same file as before; a wrong one closes its connection."""
        problem = ""
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status == 200:
            problem = "the server sends whole files only, no ranges"
        elif response.status in (401, 403):
            problem = f"the server refuses access (HTTP status {response.status})"
        elif response.status != 206:
            problem = f"HTTP status {response.status} {response.reason or ''}".strip()
        elif not found or (int(found[1]), int(found[2]) + 1) != (start, end):
            problem = f"asked for bytes {start}-{end - 1}, the server answers {response.headers.get('Content-Range')!r}"
        else:
            identity = (int(found[3]), response.headers.get("ETag", ""))
            if self._identity not in (None, identity):
                problem = "the file was replaced while it was being read; try again"
            self._identity = identity
        if problem:
            response.close()
            raise SourceError(f"{self.url}: {problem}; download the file and name it instead" if "try again" not in problem else f"{self.url}: {problem}")


def _reason(error: Exception) -> str:
    """The innermost cause, without the pool's and the address's representation."""
    reason = getattr(error, "reason", None) or error
    return re.sub(r"^.*?Connection object at 0x[0-9a-f]+>: |^<[^>]*>: ", "", str(reason))
