"""Wheels laid over each other as an installer would: the environment that they would become."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from abi_checks.bytesource import FileSource
from abi_checks.errors import SourceError
from abi_checks.sources.archive import Member
from abi_checks.sources.interface import Distribution, SourceObject, Unreadable
from abi_checks.sources.listing import LIBRARY_NAME
from abi_checks.sources.members import MemberError, Store
from abi_checks.sources.selection import PythonVersion, running_python
from abi_checks.sources.wheel import Wheel, open_bytes, open_object

ROOT = "/environment-that-the-wheels-would-become"
BATCH_BYTES = 32 << 20
"""Small objects of one wheel are handed to a worker together, up to this many inflated bytes."""
PARALLEL_BYTES = 256 << 20
"""Below this many inflated bytes, starting workers costs more than it saves."""
WORKERS = 2

Result = TypeVar("Result")


_Place = tuple[str, str, Member | None]
"""Path in the environment, path in the wheel, and the member (None: a file of an unpacked wheel)."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Objects of one wheel, to be read in one go."""

    location: str
    places: tuple[_Place, ...]

    @property
    def size(self) -> int:
        """Bytes to inflate."""
        return sum(member.size for _, _, member in self.places if member)


class WheelsSource:
    """The environment that ``wheels`` would become; where two have a file of one path, the later wheel's stands.

    ``unreadable`` are findings about wheels that could not be opened at all. ``python`` is the version the environment
    would have: it decides where site-packages lies; ``interpreter`` is one of that version, if it is known.
    """

    on_disk = False
    root = ROOT

    def __init__(
        self,
        label: str,
        wheels: Sequence[Wheel],
        python: PythonVersion,
        unreadable: Sequence[Unreadable] = (),
        *,
        complete: bool = False,
        interpreter: Path | None = None,
    ) -> None:
        self.label = label
        self.wheels = tuple(wheels)
        self.python = python
        self.complete = complete
        self.interpreter = interpreter or find_interpreter(python)
        self.fetched = sum(wheel.fetched for wheel in wheels)
        """Bytes transferred from servers so far."""
        self._unreadable = list(unreadable)
        found: dict[str, tuple[str, _Place]] = {}
        for wheel in wheels:
            for refusal in wheel.refused:
                self._unreadable.append(Unreadable(f"{wheel.filename}/{refusal.name}", refusal.why))
            for path, member in wheel.files.items():
                if ".so" in path and LIBRARY_NAME.search(path.rpartition("/")[2]):
                    place = wheel.install_path(path, self.python)
                    found[place] = (wheel.location, (place, path, member))
        self._found = [found[path] for path in sorted(found)]

    def objects(self) -> Iterator[SourceObject | Unreadable]:
        """See :class:`abi_checks.sources.interface.Source`."""
        yield from self._unreadable
        with Store() as store:
            for location, group in groupby(self._found, key=itemgetter(0)):
                yield from _read(_Batch(location, tuple(place for _, place in group)), store, self._count)

    def _count(self, fetched: int) -> None:
        self.fetched += fetched

    def map_objects(self, function: Callable[[SourceObject | Unreadable], Result]) -> Iterator[Result]:
        """``function`` of each of ``objects``, in the same order; two processes share the work where there is much.

        The function and its results must be picklable. Raises SourceError when a worker dies.
        """
        batches = list(self._batches())
        if sum(batch.size for batch in batches) < PARALLEL_BYTES:
            yield from map(function, self.objects())
            return
        yield from map(function, self._unreadable)
        results: dict[str, Result] = {}
        # Forked, so that workers need not import everything again; no thread is running here.
        with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as pool:
            largest_first = sorted(batches, key=lambda batch: -batch.size)
            futures: list[Future[tuple[list[tuple[str, Result]], int]]] = [
                pool.submit(_work, batch, function) for batch in largest_first
            ]
            try:
                for future in futures:
                    found, fetched = future.result()
                    results.update(found)
                    self.fetched += fetched
            except BrokenProcessPool as error:
                raise SourceError(f"{self.label}: a worker process died, perhaps for want of memory") from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for path in sorted(results):
            yield results[path]

    def folders(self) -> Mapping[str, frozenset[str]]:
        """See :class:`abi_checks.sources.interface.Source`."""
        folders: dict[str, set[str]] = {}
        for _, (path, _, _) in self._found:
            folder, _, name = f"{self.root}/{path}".rpartition("/")
            folders.setdefault(folder, set()).add(name)
        return {folder: frozenset(names) for folder, names in folders.items()}

    def distributions(self) -> tuple[Distribution, ...]:
        """See :class:`abi_checks.sources.interface.Source`."""
        return tuple(
            Distribution(
                name=wheel.name,
                version=wheel.version,
                folder=wheel.install_path(wheel.info_folder, self.python),
                requires=wheel.requires,
                tags=wheel.tags,
                files=frozenset(wheel.install_path(path, self.python) for path in wheel.files),
            )
            for wheel in sorted(self.wheels, key=lambda wheel: wheel.name)
        )

    def notes(self) -> tuple[str, ...]:
        """See :class:`abi_checks.sources.interface.Source`."""
        python = f"{self.python[0]}.{self.python[1]}"
        judged = f"judged as the Python {python} environment that {len(self.wheels)} wheel(s) would become"
        return (judged, f"{self.fetched:,} bytes fetched, none stored") if self.fetched else (judged,)

    def _batches(self) -> Iterator[_Batch]:
        """The objects of each wheel, small ones together."""
        for location, group in groupby(sorted(self._found, key=itemgetter(0)), key=itemgetter(0)):
            places: list[_Place] = []
            size = 0
            for _, place in group:
                more = place[2].size if place[2] else 0
                if places and size + more > BATCH_BYTES:
                    yield _Batch(location, tuple(places))
                    places, size = [], 0
                places.append(place)
                size += more
            yield _Batch(location, tuple(places))


def _work(
    batch: _Batch, function: Callable[[SourceObject | Unreadable], Result]
) -> tuple[list[tuple[str, Result]], int]:
    """In a worker: ``function`` of each object of a batch, by path, and the bytes fetched."""
    counts: list[int] = []
    return [(item.path, function(item)) for item in _read(batch, _worker_store(), counts.append)], sum(counts)


@cache
def _worker_store() -> Store:
    """The one store of a worker process; it goes with the process."""
    return Store()


def _read(batch: _Batch, store: Store, count: Callable[[int], None]) -> Iterator[SourceObject | Unreadable]:
    """The objects of a batch in order; ``count`` is told the bytes fetched."""
    if os.path.isdir(batch.location):
        for path, name, _ in batch.places:
            try:
                with FileSource(os.path.join(batch.location, name)) as data:
                    yield SourceObject(path, data)
            except OSError as error:
                yield Unreadable(path, f"cannot be read: {error.strerror}")
        return
    with open_bytes(batch.location) as source:
        for path, _, member in batch.places:
            assert member is not None  # an archive's places have members
            try:
                yield SourceObject(path, open_object(source, member, store))
            except MemberError as error:
                yield Unreadable(path, str(error))
            except OSError as error:
                where = f"is there room in {tempfile.gettempdir()}?"
                raise SourceError(
                    f"{batch.location}: cannot inflate {member.name}: {error.strerror}; {where}"
                ) from error
        count(source.fetched)


def find_interpreter(python: PythonVersion) -> Path | None:
    """An interpreter of that version: the running one, or one on PATH. A script there that would start one is none."""
    if python == running_python():
        return Path(sys.executable)
    found = shutil.which(f"python{python[0]}.{python[1]}")
    if found is None:
        return None
    with open(found, "rb") as file:
        return None if file.read(2) == b"#!" else Path(found)
