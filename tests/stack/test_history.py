"""Listing builds, going back to one, and removing those nobody needs, with a stack of tiny wheels."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack.cli import main
from stack.history import collect_garbage, folder_size, records
from stack.prefix import Build, StackFolder
from stack.processes import users_of
from tests.stack.tiny import make_tiny_stack

Capture = pytest.CaptureFixture[str]
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix with three builds of one stack, in which helper.answer is 1, 2 and 3."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for answer in (1, 2, 3):
        tiny = make_tiny_stack(tmp_path, helper_files={"helper/__init__.py": f"answer = {answer}\n"})
        assert main(tiny.arguments(tmp_path / "prefix")) == 0
    return tmp_path / "prefix"


def answer_of(build: Build | None) -> int:
    assert build is not None
    (file,) = build.environment.glob("lib/python3.*/site-packages/helper/__init__.py")
    return int(file.read_text().removeprefix("answer = "))


def build_with(prefix: Path, answer: int) -> Build:
    return next(b for b in map(Build, (prefix / "tiny" / "builds").iterdir()) if answer_of(b) == answer)


def test_builds_are_listed_newest_first_with_their_roles(prefix: Path, capsys: Capture) -> None:
    listed = records(StackFolder(prefix / "tiny"))
    assert sorted(answer_of(record.build) for record in listed) == [1, 2, 3]
    assert {answer_of(record.build): record.state for record in listed} == {
        3: "current",
        2: "previous",
        1: "kept by nothing",
    }
    assert [record.built for record in listed] == sorted((record.built for record in listed), reverse=True)
    assert all(record.build.folder.name.endswith(record.lock[:12]) for record in listed)
    capsys.readouterr()
    assert main(["builds", "--prefix", str(prefix)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("tiny")]
    assert {row[1]: row[-1] for row in rows} == {
        build_with(prefix, 3).folder.name: "current",
        build_with(prefix, 2).folder.name: "previous",
        build_with(prefix, 1).folder.name: "nothing",
    }


def test_rollback_goes_to_the_previous_build_and_back(prefix: Path, capsys: Capture) -> None:
    folder = StackFolder(prefix / "tiny")
    assert main(["rollback", "--prefix", str(prefix)]) == 0
    assert (answer_of(folder.current), answer_of(folder.previous)) == (2, 3)
    assert main(["rollback", "--prefix", str(prefix)]) == 0
    assert (answer_of(folder.current), answer_of(folder.previous)) == (3, 2)
    assert f"-> {build_with(prefix, 2).folder.name} " in capsys.readouterr().out


def test_rollback_to_a_named_build(prefix: Path, capsys: Capture) -> None:
    name = build_with(prefix, 1).folder.name
    assert main(["rollback", name[:-4], "--prefix", str(prefix)]) == 0
    assert answer_of(StackFolder(prefix / "tiny").current) == 1
    assert main(["rollback", name, "--prefix", str(prefix)]) == 0
    assert f"{name} is in use already" in capsys.readouterr().out
    assert answer_of(StackFolder(prefix / "tiny").previous) == 3


@pytest.mark.parametrize(("to", "message"), [("py0", "there is no build 'py0'"), ("py", "3 builds start with 'py'")])
def test_rollback_to_what_is_not_one_build(prefix: Path, capsys: Capture, to: str, message: str) -> None:
    assert main(["rollback", to, "--prefix", str(prefix)]) == 2
    error = capsys.readouterr().err
    assert message in error and build_with(prefix, 1).folder.name in error
    assert answer_of(StackFolder(prefix / "tiny").current) == 3


def damage_size(build: Build) -> str:
    (file,) = build.environment.glob("lib/python3.*/site-packages/helper/__init__.py")
    file.unlink()
    file.write_text("answer = 22\n")
    return "helper: helper/__init__.py has 12 bytes instead of 11"


def damage_manifest(build: Build) -> str:
    build.manifest.unlink()
    return "this build was never completed"


def damage_object(build: Build) -> str:
    """An object that RECORD knows, and that will not load."""
    source = build.folder.parent / "needy.c"
    source.write_text("void absent_function(void);\nvoid entry(void) { absent_function(); }\n")
    (packages,) = build.environment.glob("lib/python3.*/site-packages")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", packages / "helper" / "x.so", source], check=True, timeout=60)
    source.unlink()
    with (packages / "helper-1.0.dist-info" / "RECORD").open("a") as stream:
        stream.write("helper/x.so,,\n")
    return "absent_function"


@pytest.mark.parametrize("damage", [damage_size, damage_manifest, damage_object])
def test_rollback_to_a_damaged_build_is_refused(prefix: Path, capsys: Capture, damage) -> None:  # type: ignore[no-untyped-def]
    build = build_with(prefix, 1)
    expected = damage(build)
    assert main(["rollback", build.folder.name, "--prefix", str(prefix)]) == 1
    assert expected in capsys.readouterr().err
    folder = StackFolder(prefix / "tiny")
    assert (answer_of(folder.current), answer_of(folder.previous)) == (3, 2)


def test_same_size_damage_is_found_with_deep(prefix: Path, capsys: Capture) -> None:
    build = build_with(prefix, 2)
    (file,) = build.environment.glob("lib/python3.*/site-packages/helper/__init__.py")
    file.unlink()
    file.write_text("answer = 7\n")
    assert main(["rollback", "--deep", "--prefix", str(prefix)]) == 1
    assert "helper/__init__.py has sha256" in capsys.readouterr().err
    assert answer_of(StackFolder(prefix / "tiny").current) == 3


def test_a_full_disk_leaves_the_stack_in_use_as_it_was(
    prefix: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.symlink

    def full(source: str, link: Path, *rest: object) -> None:
        if Path(link).name.startswith(".current"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, link)

    monkeypatch.setattr(os, "symlink", full)
    assert main(["rollback", "--prefix", str(prefix)]) == 1
    assert "No space left on device. The stack in use is as it was" in capsys.readouterr().err
    assert answer_of(StackFolder(prefix / "tiny").current) == 3


def test_two_rollbacks_at_once_the_second_is_refused(prefix: Path, capsys: Capture) -> None:
    folder = StackFolder(prefix / "tiny")
    with folder.exclusive(print):
        assert main(["rollback", "--prefix", str(prefix)]) == 1
        assert main(["gc", "--prefix", str(prefix)]) == 1
    error = capsys.readouterr().err
    assert error.count(f"is being changed by process {os.getpid()} since 20") == 2
    assert answer_of(folder.current) == 3 and len(records(folder)) == 3


def test_several_stacks_need_a_name(prefix: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(make_tiny_stack(tmp_path, name="other").arguments(prefix)) == 0
    assert main(["rollback", "--prefix", str(prefix)]) == 2
    assert "holds several stacks (other, tiny)" in capsys.readouterr().err
    assert main(["rollback", "--stack", "tiny", "--prefix", str(prefix)]) == 0
    assert main(["rollback", "--stack", "other", "--prefix", str(prefix)]) == 2
    assert "no build was in use before" in capsys.readouterr().err


def test_nothing_there(tmp_path: Path, capsys: Capture) -> None:
    for command in ("builds", "rollback"):
        assert main([command, "--prefix", str(tmp_path / "none")]) == 3
    assert main(["gc", "--prefix", str(tmp_path / "none")]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_gc_keeps_current_and_previous_and_removes_the_rest(prefix: Path, capsys: Capture) -> None:
    folder = StackFolder(prefix / "tiny")
    name = build_with(prefix, 1).folder.name
    (folder.path / "builds" / "py399-unfinished" / "env").mkdir(parents=True)
    assert main(["gc", "--prefix", str(prefix)]) == 0
    assert sorted(answer_of(record.build) for record in records(folder)) == [2, 3]
    assert f"tiny {name}: removed" in capsys.readouterr().out


WAYS = {
    "program": "import sys, time; print(flush=True); time.sleep(600)",
    "folder": "import os, sys, time; os.chdir(sys.argv[1]); print(flush=True); time.sleep(600)",
    "file": "import sys, time; f = open(sys.argv[1] + '/lock.txt'); print(flush=True); time.sleep(600)",
    "map": "import mmap, os, sys, time; f = os.open(sys.argv[1] + '/lock.txt', 0)\n"
    "m = mmap.mmap(f, 0, prot=mmap.PROT_READ); os.close(f); print(flush=True); time.sleep(600)",
}


@pytest.mark.parametrize("way", list(WAYS))
def test_gc_keeps_a_build_that_a_process_uses(prefix: Path, capsys: Capture, way: str) -> None:
    build = build_with(prefix, 1)
    python = str(build.environment / "bin" / "python") if way == "program" else sys.executable
    process = subprocess.Popen([python, "-c", WAYS[way], str(build.folder)], stdout=subprocess.PIPE, cwd=PROJECT)
    try:
        assert process.stdout and process.stdout.readline() == b"\n"
        said: list[str] = []
        assert collect_garbage(StackFolder(prefix / "tiny"), said.append) == ()
        assert said == [f"{build.folder.name}: kept, process {process.pid} uses it"]
        assert next(r for r in records(StackFolder(prefix / "tiny")) if r.build == build).users == (process.pid,)
    finally:
        process.kill()
        process.communicate()
    (removal,) = collect_garbage(StackFolder(prefix / "tiny"), print)
    assert removal.name == build.folder.name and not build.folder.exists()


def test_a_process_that_cannot_be_read_is_counted_as_hidden(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "77"
    process.mkdir(parents=True)
    (process / "cmdline").symlink_to("/proc/self/mem/none")  # ENOTDIR, as of a process that has ended
    assert users_of(tmp_path, tmp_path / "proc").hidden == 0
    (process / "cmdline").unlink()
    (process / "cmdline").write_bytes(b"python\0")
    assert users_of(tmp_path, tmp_path / "proc").processes == ()


def test_files_shared_with_a_cache_are_not_freed(tmp_path: Path) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "own").write_bytes(b"x" * 8192)
    (tmp_path / "cache").write_bytes(b"y" * 4096)
    os.link(tmp_path / "cache", folder / "shared")
    os.link(folder / "own", folder / "again")
    size = folder_size(folder)
    assert (size.total, size.own) == (12288, 8192)
