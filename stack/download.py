"""Fetching wheels into a folder: several at a time, hashed as they arrive, and renamed only when the hash is right."""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3

from abi_checks.errors import SourceError, UserError
from abi_checks.remote import connections
from stack.artifacts import Artifact
from stack.files import sha256_of

CONNECTIONS = 16
"""Files fetched at a time: a server gives one connection a part of what the line carries, and nothing is read from it
while its file is hashed and written. uv takes 50."""

CHUNK = 1 << 20
ATTEMPTS = 4
"""How often a transfer that breaks off is taken up again where it stopped."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """How many files were fetched and how many bytes; ``kept`` files lay there already with the right hash."""

    files: int
    bytes: int
    kept: int


def fetch_all(wanted: Sequence[tuple[Artifact, Path]], detail: Callable[[str], None]) -> Fetched:
    """Put every file into the folder beside it, fetching those that do not lie there with the right hash.

    What is complete stays when something fails, so that the next call goes on from there.

    :raises SourceError: a file cannot be had, or has another hash
    :raises UserError: the disk is full
    """
    for folder in {folder for _, folder in wanted}:
        folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    done: list[Artifact] = []

    def fetch(item: Artifact, folder: Path) -> int:
        if stop.is_set():
            return 0
        size = _fetch(item, folder / item.filename, stop)
        done.append(item)
        detail(f"{len(done)} of {len(wanted)} files: {item.filename}")
        return size

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        # The largest first, so that none is left to come alone at the end.
        ordered = sorted(wanted, key=lambda pair: -(pair[0].size or 1 << 40))
        jobs: list[Future[int]] = [pool.submit(fetch, item, folder) for item, folder in ordered]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        failed = next((error for job in jobs if job.done() and (error := job.exception())), None)
    if failed is not None:
        raise failed
    sizes = [job.result() for job in jobs]
    return Fetched(sum(size > 0 for size in sizes), sum(sizes), sum(size == 0 for size in sizes))


def _fetch(item: Artifact, target: Path, stop: threading.Event) -> int:
    """Bytes fetched; 0 where the file was there."""
    if target.is_file() and not target.is_symlink() and sha256_of(target) == item.sha256:
        return 0
    part = target.with_name(f".{target.name}.part")
    digest = hashlib.sha256()
    try:
        with part.open("wb") as stream:
            for chunk in _chunks(item):
                if stop.is_set():
                    return 0
                stream.write(chunk)
                digest.update(chunk)
            size = stream.tell()
        if digest.hexdigest() != item.sha256:
            raise SourceError(
                f"{item.filename}: refused, its hash is not the locked one\n  locked: sha256 {item.sha256}\n"
                f"  found:  sha256 {digest.hexdigest()} at {_shown(item.location)}"
            )
        part.replace(target)
        return size
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{target.parent}: the disk is full ({shutil.disk_usage(target.parent).free >> 20} MiB free) while "
                f"{item.filename} was written. The complete files stay; make room and run the same command again"
            ) from error
        raise SourceError(f"{item.filename}: cannot be taken from {_shown(item.location)}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _chunks(item: Artifact) -> Iterator[bytes]:
    if item.path is not None:
        with item.path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
        return
    parts = urlsplit(item.location)
    headers = {"Accept-Encoding": "identity"}
    if parts.username:
        headers |= urllib3.make_headers(basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")
    pool = connections(item.location)
    at, attempt = 0, 1
    while True:
        try:
            response = pool.request("GET", _shown(item.location), headers=headers | _from(at), preload_content=False)
            if response.status not in (200, 206) or (at and response.status != 206):
                raise SourceError(
                    f"{item.filename}: {parts.hostname} answers {response.status} {response.reason or ''}".rstrip()
                    + f" for {_shown(item.location)}"
                )
            for chunk in response.stream(CHUNK):
                at += len(chunk)
                yield chunk
            return
        except urllib3.exceptions.HTTPError as error:
            # The pool itself tries again what fails before an answer; this is for what breaks off in the middle.
            if attempt == ATTEMPTS or isinstance(error, urllib3.exceptions.MaxRetryError):
                raise SourceError(
                    f"{item.filename}: {parts.hostname} cannot be reached or broke off after {at} bytes ({error}). "
                    "The complete files stay; run the same command again, or name a mirror with --mirror"
                ) from error
            attempt += 1


def _from(at: int) -> dict[str, str]:
    return {"Range": f"bytes={at}-"} if at else {}


def _shown(location: str) -> str:
    """The address without a user and password."""
    parts = urlsplit(location)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
