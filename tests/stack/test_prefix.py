"""The layout of a prefix and its links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from abi_checks.errors import SourceError
from stack.prefix import Build, StackFolder, default_prefix, environments_in_use


def complete_build(folder: StackFolder, name: str) -> Build:
    build = folder.build(name)
    build.environment.mkdir(parents=True)
    build.manifest.write_text("{}")
    return build


def test_the_default_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CU130_STACK_PREFIX", raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_prefix() == Path("/home/x/.local/share/cu130-stack")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_prefix() == Path("/data/cu130-stack")
    monkeypatch.setenv("CU130_STACK_PREFIX", "~/stacks")
    assert default_prefix() == Path("/home/x/stacks")


def test_switching_keeps_the_one_before(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "s")
    first, second = complete_build(folder, "py312-aaaa"), complete_build(folder, "py312-bbbb")
    assert folder.current is None and folder.previous is None
    assert folder.switch(first) and folder.current == first and folder.previous is None
    assert not folder.switch(first) and folder.previous is None
    assert folder.switch(second) and (folder.current, folder.previous) == (second, first)
    assert {str((folder.path / name).readlink()) for name in ("current", "previous")} == {
        "builds/py312-bbbb",
        "builds/py312-aaaa",
    }


def test_a_link_to_an_incomplete_build_is_no_current(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "s")
    build = complete_build(folder, "py312-aaaa")
    folder.switch(build)
    build.manifest.unlink()
    assert folder.current is None


def test_the_environments_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CU130_STACK_PREFIX", str(tmp_path))
    with pytest.raises(SourceError, match="no stack is in use there"):
        environments_in_use()
    for name in ("b", "a"):
        folder = StackFolder(tmp_path / name)
        folder.switch(complete_build(folder, "py312-aaaa"))
    assert environments_in_use() == [f"{tmp_path}/a/current/env", f"{tmp_path}/b/current/env"]


def test_a_child_that_outlives_its_parent_keeps_the_lock(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "s")
    # The parent ends at once, as if killed; the child that it gave the descriptor to ends when its input does.
    parent = """
import subprocess, sys
from pathlib import Path
from stack.prefix import StackFolder
with StackFolder(Path(sys.argv[1])).exclusive(print) as held:
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=int(sys.argv[2]), pass_fds=[held])
    import os
    os._exit(0)
"""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", parent, str(folder.path), str(reader)]
    subprocess.run(command, pass_fds=[reader], check=True, timeout=60)
    os.close(reader)
    said: list[str] = []

    def let_go(text: str) -> None:
        said.append(text)
        os.close(writer)

    with folder.exclusive(let_go):
        pass
    assert len(said) == 1 and said[0].startswith("waiting: s is being built by process ")


def test_a_prefix_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = StackFolder(tmp_path / "file" / "s")
    with pytest.raises(SourceError, match="Not a directory"), folder.exclusive(print):
        pass
