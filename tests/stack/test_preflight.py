"""What is refused before anything is downloaded, and how a Python is found."""

from __future__ import annotations

import collections
import platform
import shutil
from pathlib import Path

import pytest

from abi_checks.errors import UsageError, UserError
from stack import preflight
from stack.cli import main
from stack.definition import load_definition
from stack.interpreters import choose_interpreter, find_interpreter, probe
from stack.preflight import GIB, check_disk, check_host, host_glibc
from tests.stack.tiny import PYTHON, TinyStack, make_tiny_stack

Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStack:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return make_tiny_stack(tmp_path)


def test_glibc_too_old_or_absent_or_another_machine() -> None:
    definition = load_definition("cu130-pypi")
    check_host(definition, "2.34", "x86_64")
    check_host(definition, "2.100", "x86_64")
    with pytest.raises(
        UserError, match=r"manylinux_2_34: they need glibc 2\.34 or newer, and this host has glibc 2\.31"
    ):
        check_host(definition, "2.31", "x86_64")
    with pytest.raises(UserError, match="they need glibc"):
        check_host(definition, "", "x86_64")
    with pytest.raises(UserError, match="is locked for x86_64, and this host is aarch64"):
        check_host(definition, "2.34", "aarch64")
    assert host_glibc() == platform.libc_ver()[1]


def test_room_is_needed_for_what_is_not_in_the_cache_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = load_definition("cu130-pypi")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 * GIB, 0, 7.2 * GIB))
    check_disk(definition, tmp_path / "prefix", tmp_path / "cache", 95, 190)
    with pytest.raises(
        UserError, match=rf"{tmp_path}: 7\.2 GiB are free and cu130-pypi needs 13\.0 GiB there\. Make room"
    ):
        check_disk(definition, tmp_path / "prefix", tmp_path / "cache", 190, 190)


def test_too_little_room_stops_before_anything_is_written(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(GIB, GIB, 0))
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "0.0 GiB are free and tiny needs 2.0 GiB there" in capsys.readouterr().err
    assert not (tmp_path / "prefix").exists()


def test_a_host_that_is_too_old_stops_before_anything_is_written(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stack.choose.host_glibc", lambda: "2.12")
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "this host has glibc 2.12" in capsys.readouterr().err
    assert not (tmp_path / "prefix").exists()


def test_a_python_the_stack_has_no_lock_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--stack", "cu128", "--python", "3.13", "--prefix", str(tmp_path / "p")]) == 2
    assert "cu128 cannot be had for Python 3.13: SGLang 0.5.9 needs outlines" in capsys.readouterr().err


def test_the_python_this_runs_on_is_found() -> None:
    found = find_interpreter(PYTHON)
    assert found and found.version == PYTHON and found.machine == platform.machine()
    assert probe(found.path) == found


def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert probe(shim) is None and probe(tmp_path / "absent") is None
    assert find_interpreter("3.99") is None


def test_pyenvs_versions_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "versions" / "3.99.1" / "bin"
    folder.mkdir(parents=True)
    fake = folder / "python3.99"
    fake.write_text('#!/bin/sh\necho \'["cpython", "3.99", "3.99.1", "/base/python3.99", "x86_64"]\'\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    found = find_interpreter("3.99")
    assert found and (str(found.path), found.release) == ("/base/python3.99", "3.99.1")


def test_without_any_python_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.interpreters.find_interpreter", lambda version: None)
    with pytest.raises(UsageError, match=r"no Python 3\.12 or 3\.11 was found for cu128 .*`uv python install 3\.12`"):
        choose_interpreter(load_definition("cu128"), None)


def test_room_on_two_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = load_definition("cu130-pypi")
    free = {"a": 12.5 * GIB, "b": 0.5 * GIB}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free[path.name]))
    monkeypatch.setattr(preflight, "_device", lambda path: path.name)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    check_disk(definition, tmp_path / "a", tmp_path / "b", 0, 190)
    with pytest.raises(UserError, match=r"b: 0\.5 GiB are free and cu130-pypi needs 6\.0 GiB there"):
        check_disk(definition, tmp_path / "a", tmp_path / "b", 95, 190)
    with pytest.raises(UserError, match=r"b: 0\.5 GiB are free and cu130-pypi needs 12\.0 GiB there"):
        check_disk(definition, tmp_path / "b", tmp_path / "a", 0, 190)
