"""Two processes that read one folder: the same facts as one, whatever becomes of the second."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from abi_checks import cache
from abi_checks.cached_symbols import CachedSymbols
from abi_checks.facts import Gathered, ObjectFacts, ReadFacts
from abi_checks.read_ahead import WORTH_SHARING, ReadAhead
from abi_checks.scan import scan
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.interface import SourceObject, Unreadable
from tests.abi_checks.fixtures import compile_object, version_script

COUNT = WORTH_SHARING + 20


@pytest.fixture(autouse=True)
def one_thread_and_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, and earlier tests have left."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects that differ in their symbols, one with versions; a damaged one, one that is no ELF file, two names of one
    file, a broken link."""
    root = tmp_path_factory.mktemp("many")
    versions = version_script(root, "V1 { global: have2; };")
    kinds = [
        compile_object(root / f"kind{kind}.so", f"extern int need{kind}; int *have{kind} = &need{kind};", *flags)
        for kind, flags in enumerate(((), (), (versions,)))
    ]
    for number in range(COUNT):
        shutil.copyfile(kinds[number % 3], root / f"lib{number:03}.so")
    (root / "lib000.so").write_bytes((root / "lib001.so").read_bytes()[:600])
    (root / f"lib{COUNT - 1:03}.so").write_bytes((root / "lib001.so").read_bytes()[:600])
    (root / "text.so.txt").write_text("no object")
    os.link(root / "lib002.so", root / "again.so")
    (root / "broken.so").symlink_to("nowhere")
    return root


def plainly(folder: Path) -> list[Gathered]:
    source = FolderSource(folder)
    return list(source.map_objects(ReadFacts(source.root)))


def of_the_child(found: list[Gathered]) -> list[bool]:
    return [isinstance(item.elf.symbols, CachedSymbols) for item in found if isinstance(item, ObjectFacts)]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_all_facts_are_those_of_one_process(folder: Path) -> None:
    source = FolderSource(folder)
    with ReadAhead(source.root, source.files()) as read:
        child = read._child
        found = list(source.map_objects(read))
    assert found == plainly(folder)
    assert sum(isinstance(item, Unreadable) for item in found) == 3 and None in found
    assert any(isinstance(item, ObjectFacts) and item.elf.defined_versions for item in found)
    assert child and not is_there(child)


def test_the_child_reads_from_the_end(folder: Path) -> None:
    source = FolderSource(folder)
    with ReadAhead(source.root, source.files()) as read:
        # By now the child has come to the first file, which it leaves to this process.
        while read._positions[1]:
            time.sleep(0.01)
        found = list(source.map_objects(read))
    assert found == plainly(folder)
    assert of_the_child(found).count(False) <= 1


def test_what_a_child_that_dies_has_read_is_read_again(folder: Path) -> None:
    source = FolderSource(folder)
    with ReadAhead(source.root, source.files()) as read:
        os.kill(read._child, signal.SIGKILL)
        found = list(source.map_objects(read))
    assert found == plainly(folder) and not any(of_the_child(found))


def test_an_error_of_the_child_shows_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    def fail(self: ReadFacts, item: SourceObject | Unreadable) -> NoReturn:
        raise Broken

    source = FolderSource(folder)
    with monkeypatch.context() as patched:
        patched.setattr(ReadFacts, "__call__", fail)
        with ReadAhead(source.root, source.files()) as read, pytest.raises(Broken):
            list(source.map_objects(read))
    # The same where only the child fails: its part is read here.
    with monkeypatch.context() as patched:
        patched.setattr(ReadFacts, "__call__", fail)
        read = ReadAhead(source.root, source.files())
    with read:
        assert list(source.map_objects(read)) == plainly(folder)


def test_no_process_is_left_when_the_reading_stops_early(folder: Path) -> None:
    source = FolderSource(folder)
    with pytest.raises(KeyboardInterrupt), ReadAhead(source.root, source.files()) as read:
        child = read._child
        raise KeyboardInterrupt
    assert child and not is_there(child)


@pytest.mark.parametrize("what", ["fork", "memfd_create"])
def test_where_no_second_process_can_be(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def refuse(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, what, refuse)
    source = FolderSource(folder)
    with ReadAhead(source.root, source.files()) as read:
        found = list(source.map_objects(read))
    assert found == plainly(folder) and not any(of_the_child(found))


def test_under_a_caller_that_ignores_its_children(folder: Path) -> None:
    source = FolderSource(folder)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ReadAhead(source.root, source.files()) as read:
            found = list(source.map_objects(read))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == plainly(folder)


@pytest.mark.parametrize(("cores", "files", "threads"), [(1, COUNT, 1), (2, WORTH_SHARING - 1, 1), (2, COUNT, 2)])
def test_where_there_is_no_second_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int, files: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    source = FolderSource(folder)
    with ReadAhead(source.root, source.files()[:files]) as read:
        assert list(source.map_objects(read)) == plainly(folder)


def test_the_scan_cache_keeps_what_the_child_has_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 0)
    first = scan(FolderSource(folder), cache=tmp_path)
    assert any(isinstance(facts.symbols, CachedSymbols) for facts in first.objects)
    source = FolderSource(folder)
    memory = cache.ScanCache(source.root, tmp_path)
    known = {os.path.join(source.root, file.path) for file in source.files() if memory.knows(file)}
    assert known == {facts.path for facts in first.objects}
    assert scan(FolderSource(folder), cache=tmp_path).objects == first.objects


def test_a_file_that_vanishes_is_reported(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    source = FolderSource(copy)
    source.files()
    gone = copy / f"lib{COUNT - 2:03}.so"
    gone.unlink()
    with ReadAhead(source.root, source.files()) as read:
        found = list(source.map_objects(read))
    assert Unreadable(gone.name, "cannot be read: No such file or directory") in found
