"""The bytes of a file on an HTTP server, read over ranges (RFC 9110, section 14) and never stored."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3

from abi_checks.errors import SourceError

STEP = 8 << 20
"""Bytes asked for in one request while streaming: large enough that the round trip hardly counts at 100 MB/s."""
WINDOW = 64 << 10
"""Small reads fetch this much at once: the end of a wheel, its directory and its metadata lie close together."""
RETRY_WAIT = 0.5
"""Seconds before a request is made again; twice as long each further time."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def connections(url: str) -> urllib3.PoolManager:
    """Connections to the host of ``url``, through the proxy that the environment names for it, if any."""
    parts = urlsplit(url)
    retries = urllib3.Retry(
        total=3, backoff_factor=RETRY_WAIT, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
    )
    timeout = urllib3.Timeout(connect=15, read=60)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        return urllib3.ProxyManager(proxy, retries=retries, timeout=timeout)
    return urllib3.PoolManager(retries=retries, timeout=timeout)


class RemoteFile:
    """A file behind an ``http`` or ``https`` URL.

    Raises SourceError when the host can't be reached, has no such file, doesn't serve ranges, or changes the file
    between two requests. A user and password in the URL are sent, and never shown.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        self.fetched = 0
        """Bytes of the file transferred so far."""
        self._headers: dict[str, str] = {"Accept-Encoding": "identity"}
        if parts.username:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers |= urllib3.make_headers(basic_auth=secret)
        self._pool = connections(self.url)
        self._identity: tuple[int, str] | None = None
        self._window = (0, self._get(0, 1))

    @property
    def size(self) -> int:
        """Length in bytes, as the server told with the first answer."""
        return self._identity[0] if self._identity else 0

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`abi_checks.bytesource.ByteSource`; raises SourceError when the transfer fails."""
        if offset < 0 or offset >= self.size or length <= 0:
            return b""
        end = min(offset + length, self.size)
        start, data = self._window
        if not (start <= offset and end <= start + len(data)):
            # Near the end, the window reaches backwards: what is read next is the directory in front of the end record.
            start = min(offset, max(0, self.size - WINDOW))
            data = self._get(start, min(self.size, max(end, start + WINDOW)))
            self._window = (start, data)
        return data[offset - start : end - start]

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes ``start .. end`` in order; the next piece is fetched while the caller works on the last."""
        end = min(end, self.size)
        first, data = self._window
        if first <= start < first + len(data):  # what is there already is not fetched again
            yield data[start - first : end - first]
            start = first + len(data)
        if end - start <= WINDOW:
            yield self.read(start, end - start)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as ahead:
            pending = ahead.submit(self._get, start, min(start + STEP, end))
            for following in range(start + STEP, end + STEP, STEP):
                data = pending.result()
                if following < end:
                    pending = ahead.submit(self._get, following, min(following + STEP, end))
                yield data

    def _get(self, start: int, end: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{end - 1}"}
        for last in (False, False, True):
            try:
                response = self._pool.request("GET", self.url, headers=headers, preload_content=False)
                try:
                    self._check(response, start, end)
                    data = response.read(decode_content=False)
                finally:
                    response.release_conn()
            except urllib3.exceptions.HTTPError as error:
                if last:
                    advice = "check the network, or download the file and name it instead"
                    raise SourceError(f"{self.url}: cannot be read: {_reason(error)}; {advice}") from error
                continue
            self.fetched += len(data)
            return data
        raise AssertionError("the last attempt returns or raises")

    def _check(self, response: urllib3.BaseHTTPResponse, start: int, end: int) -> None:
        """Whether an answer holds the range asked for, of the same file as before."""
        told = response.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(told)
        identity = (int(found[3]), response.headers.get("ETag", "")) if found else None
        advice = "download the file and name it instead"
        if response.status == 200:
            problem = "the server sends whole files only, no ranges"
        elif response.status != 206:
            problem = f"HTTP status {response.status} {response.reason or ''}".strip()
        elif not found or (int(found[1]), int(found[2]) + 1) != (start, end):
            problem = f"asked for bytes {start}-{end - 1}, the server answers {told!r}"
        elif self._identity not in (None, identity):
            problem, advice = "the file was replaced while it was being read", "try again"
        else:
            self._identity = identity
            return
        response.close()  # or what was not asked for would be read before the connection is used again
        raise SourceError(f"{self.url}: {problem}; {advice}")


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    """The innermost cause, without the representation of pools and connections."""
    return re.sub(r"^\S*(Connection|Pool)\(.*?\): ", "", str(getattr(error, "reason", None) or error))
