"""Which wheels of a lock can be had from here, and where each comes from, decided before anything is downloaded."""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from abi_checks.errors import SourceError, UsageError
from stack.definition import NO_HOST, StackDefinition
from stack.interpreters import Interpreter
from stack.lockfile import Lock, LockedDistribution
from stack.uv import run_uv

PROBE_SECONDS = 8.0
"""How long a host may take to answer. Hosts are asked at the same time, so this bounds all of them together."""

SURVEY_SECONDS = 120.0
"""How long uv may take to look up every entry of a lock on an index that answers (a second, as a rule)."""


class Origin(StrEnum):
    """Where wheels come from."""

    WHEELHOUSE = "wheelhouse"
    CACHE = "uv's cache"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Missing:
    """A wheel that cannot be had, and why."""

    wheel: str
    reason: str


@dataclass(frozen=True, slots=True)
class DirectSource:
    """Where a wheel that is on no index is taken from; ``address`` is a ``file:`` or ``https:`` URL."""

    distribution: LockedDistribution
    origin: Origin
    address: str


@dataclass(frozen=True, slots=True)
class Availability:
    """What was found. ``index`` says where the indexed distributions come from, ``to_download`` how many are not in
    uv's cache yet."""

    definition: StackDefinition
    lock: Lock
    interpreter: Interpreter
    missing: tuple[Missing, ...]
    index: Origin
    index_options: tuple[str, ...]
    wheelhouse: Path | None
    direct: tuple[DirectSource, ...]
    to_download: int

    def requirements(self, names: Collection[str] | None = None) -> str:
        """The lock, or the named distributions of it, as uv is to install them from here."""
        entries = {item.name: item.entry() for item in self.lock.indexed}
        entries |= {source.distribution.name: source.distribution.entry(source.address) for source in self.direct}
        return "".join(entries[name] for name in sorted(entries) if names is None or name in names)


def survey(
    definition: StackDefinition,
    lock: Lock,
    interpreter: Interpreter,
    wheelhouse: Path | None,
    mirrors: Mapping[str, str],
) -> Availability:
    """Find out where every wheel of the lock can be had from.

    ``mirrors`` maps the start of an address, ``https://host``, to what replaces it.

    :raises SourceError: the wheelhouse is not a folder
    """
    if wheelhouse is not None:
        check_wheelhouse(wheelhouse)
    with tempfile.TemporaryDirectory(prefix="cu130-stack-survey-") as name:
        uv = _DryRun(Path(name), interpreter)
        direct, unlocated = _locate(lock.direct, uv, wheelhouse, mirrors)
        probes = _Probes([source.address for source in unlocated])
        index, options, absent, to_download = _survey_index(lock.indexed, uv, wheelhouse)
        answers = probes.answers()
    missing = list(absent)
    for source in unlocated:
        if reason := answers[source.address]:
            missing.append(Missing(source.distribution.filename, reason))
    cached = sum(source.origin is Origin.CACHE for source in direct)
    return Availability(
        definition=definition,
        lock=lock,
        interpreter=interpreter,
        missing=tuple(missing),
        index=index,
        index_options=options,
        wheelhouse=wheelhouse,
        direct=(*direct, *unlocated),
        to_download=to_download + len(lock.direct) - cached,
    )


def check_wheelhouse(folder: Path) -> None:
    """Refuse what is no folder of wheels, and wheels that are links to a file somewhere else.

    :raises SourceError: naming the link and where it leads
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder of wheels (--wheelhouse)")
    root = folder.resolve()
    for path in folder.glob("*.whl"):
        if path.is_symlink() and root not in path.resolve().parents:
            raise SourceError(
                f"{path}: refused, it is a symbolic link that leads out of the wheelhouse, to {path.resolve()}. "
                "Put the file itself there"
            )


def parse_mirrors(values: Sequence[str]) -> dict[str, str]:
    """``https://host=https://mirror/path`` texts as a mapping.

    :raises UsageError: a text of another form
    """
    mirrors = {}
    for value in values:
        original, _, mirror = value.partition("=")
        if not (original.startswith("https://") and urlsplit(mirror).scheme in ("https", "http", "file")):
            raise UsageError(f"--mirror must be https://HOST=https://MIRROR/PATH, not {value!r}")
        mirrors[original.rstrip("/") + "/"] = mirror.rstrip("/") + "/"
    return mirrors


@dataclass(frozen=True, slots=True)
class _DryRun:
    """Asks uv what an installation into an empty folder would take."""

    folder: Path
    interpreter: Interpreter

    def __call__(
        self, entries: str, options: Sequence[str], *, limit: float = SURVEY_SECONDS, retries: bool = True
    ) -> tuple[int | None, str]:
        """How many files uv would download, or None and uv's message."""
        (self.folder / "requirements.txt").write_text(entries)
        try:
            result = run_uv(
                [
                    *("pip", "sync", "requirements.txt", "--dry-run", "--require-hashes", "--only-binary", ":all:"),
                    *(
                        "--target",
                        "empty",
                        "--python",
                        str(self.interpreter.path),
                        "--allow-empty-requirements",
                        *options,
                    ),
                ],
                folder=self.folder,
                timeout=limit,
                settings={} if retries else {"UV_HTTP_RETRIES": "0"},
            )
        except SourceError as error:
            return None, str(error)
        if result.returncode:
            return None, result.messages
        for line in result.messages.splitlines():
            words = line.split()
            if words[:2] == ["Would", "download"]:
                return int(words[2]), ""
        return 0, ""


def _locate(
    direct: Sequence[LockedDistribution], uv: _DryRun, wheelhouse: Path | None, mirrors: Mapping[str, str]
) -> tuple[list[DirectSource], list[DirectSource]]:
    """The direct wheels that are on this machine, and those that would come over the network."""
    here, elsewhere = [], []
    for item in direct:
        file = wheelhouse / item.filename if wheelhouse else None
        address = item.url
        for original, mirror in mirrors.items():
            if address.startswith(original):
                address = mirror + address.removeprefix(original)
        if file and file.is_file():
            here.append(DirectSource(item, Origin.WHEELHOUSE, file.resolve().as_uri()))
        elif uv(item.entry(address), ["--offline"])[0] == 0:
            here.append(DirectSource(item, Origin.CACHE, address))
        else:
            elsewhere.append(DirectSource(item, Origin.NETWORK, address))
    return here, elsewhere


def _survey_index(
    indexed: Sequence[LockedDistribution], uv: _DryRun, wheelhouse: Path | None
) -> tuple[Origin, tuple[str, ...], list[Missing], int]:
    entries = "".join(item.entry() for item in indexed)
    links = ("--find-links", str(wheelhouse.resolve())) if wheelhouse else ()
    if wheelhouse:
        options = ("--no-index", *links)
        downloads, _ = uv(entries, options)
        if downloads is not None:
            return Origin.WHEELHOUSE, options, [], downloads
    downloads, _ = uv(entries, ("--offline", *links))
    if downloads == 0:
        return Origin.CACHE, ("--offline", *links), [], 0
    first = indexed[0]
    # Only an answer that is fetched anew shows that the index answers.
    answer, message = uv(first.entry(), ("--refresh", *links), limit=PROBE_SECONDS, retries=False)
    if answer is None and f"{first.name} was not found" not in message:
        reason = f"the package index does not answer ({_last_line(message)})"
        return Origin.NETWORK, links, [Missing(f"{item.name} {item.version}", reason) for item in indexed], len(indexed)
    downloads, message = uv(entries, links)
    if downloads is not None:
        return Origin.NETWORK, links, [], downloads
    named = [
        item for item in indexed if f"{item.name}=={item.version}" in message or f"{item.name} was not found" in message
    ]
    reason = "the package index does not have it" if named else f"uv says: {message.strip()}"
    return (
        Origin.NETWORK,
        links,
        [Missing(f"{item.name} {item.version}", reason) for item in named or indexed],
        len(indexed),
    )


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith(("hint", "Using"))]
    return lines[-1].removeprefix("cause: ") if lines else "no message"


class _Probes:
    """Asks every address at the same time whether it answers.

    In daemon threads, because a name server that is silent blocks a thread for longer than any timeout set here.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._deadline = time.monotonic() + PROBE_SECONDS
        self._found: dict[str, str] = {}
        self._threads = {
            address: threading.Thread(target=self._ask, args=(address,), daemon=True) for address in addresses
        }
        for thread in self._threads.values():
            thread.start()

    def answers(self) -> dict[str, str]:
        """Address → "" if it answers, else why not."""
        for thread in self._threads.values():
            thread.join(max(0.0, self._deadline - time.monotonic()))
        silent = f"did not answer within {PROBE_SECONDS:g} s"
        return {
            address: self._found.get(address, f"{urlsplit(address).hostname} {silent}") for address in self._threads
        }

    def _ask(self, address: str) -> None:
        host = urlsplit(address).hostname or address
        if address.startswith(NO_HOST):
            self._found[address] = "it is on no host, and no wheelhouse with it was given"
            return
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PROBE_SECONDS):
                self._found[address] = ""
        except urllib.error.HTTPError as error:
            self._found[address] = f"{host} answers {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            self._found[address] = f"{host} cannot be reached ({getattr(error, 'reason', None) or error})"
