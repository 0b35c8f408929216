"""Building, from the command line to the link in use, with a stack of tiny wheels and no network."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.cli import main
from stack.installed import compare
from stack.lockfile import read_lock
from stack.prefix import StackFolder
from tests.abi_checks.fixtures import compile_object
from tests.stack.tiny import PYTHON, TinyStack, make_tiny_stack, make_wheel

Capture = pytest.CaptureFixture[str]
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStack:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return make_tiny_stack(tmp_path)


def run_current(folder: StackFolder, code: str) -> str:
    python = folder.path / "current" / "env" / "bin" / "python"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_build_is_put_in_use_and_recorded(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    folder = StackFolder(tmp_path / "prefix" / "tiny")
    lock = read_lock(tiny.definition.parent / f"tiny-py{PYTHON.replace('.', '')}.txt")
    assert (folder.path / "current").readlink() == Path("builds") / lock.build_name
    assert (
        run_current(folder, "import helper, torch.version; print(helper.answer, torch.version.__version__)")
        == "42 2.9.1+cu130"
    )
    build = folder.build(lock.build_name)
    manifest = json.loads(build.manifest.read_text())
    assert manifest["distributions"] == {"helper": "1.0", "torch": "2.9.1+cu130"}
    assert manifest["lock"]["sha256"] == lock.sha256
    assert manifest["sources"]["indexed"] == "wheelhouse"
    assert manifest["sources"]["direct"]["torch-2.9.1+cu130-py3-none-any.whl"]["origin"] == "wheelhouse"
    assert manifest["metadata_differences"] == [] and manifest["findings"] == [] and manifest["passed_over"] == {}
    assert build.lock.read_text() == lock.text
    assert sorted(path.name for path in build.folder.iterdir()) == [
        *("env", "lock.txt", "manifest.json", "report.json", "waivers.toml")
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1] == f"stack tiny for Python {PYTHON}: two tiny wheels"


def test_an_unchanged_lock_installs_nothing(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    build = StackFolder(tmp_path / "prefix" / "tiny").current
    assert build is not None
    before = {path: path.stat().st_mtime_ns for path in build.folder.rglob("*") if "__pycache__" not in path.parts}
    capsys.readouterr()
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    assert "already built and unchanged" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_state_of_the_definition_is_judged_anew_without_installing(
    tiny: TinyStack, tmp_path: Path, capsys: Capture
) -> None:
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    with tiny.definition.open("a") as stream:
        stream.write(
            '[[waivers]]\ncheck = "missing-library"\nobject = "x"\ndistribution = "helper==1.0"\nreason = "none"\n'
        )
    capsys.readouterr()
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    output = capsys.readouterr().out
    assert "install with hashes" not in output and "1 warnings" in output
    build = StackFolder(tmp_path / "prefix" / "tiny").current
    assert build and 'object = "x"' in build.waivers.read_text()
    assert [finding["check"] for finding in json.loads(build.manifest.read_text())["findings"]] == ["unused-waiver"]


def test_a_new_lock_moves_current_and_keeps_previous(tiny: TinyStack, tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "prefix" / "tiny")
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    first = folder.current
    make_tiny_stack(tmp_path, helper_files={"helper/__init__.py": "answer = 43\n"})
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    assert run_current(folder, "import helper; print(helper.answer)") == "43"
    assert folder.previous == first and folder.current != first


def test_a_file_with_another_hash_is_refused_and_the_upload_named(
    tiny: TinyStack, tmp_path: Path, capsys: Capture
) -> None:
    wheel = next(tiny.wheelhouse.glob("torch-*.whl"))
    wheel.write_bytes(b"the second upload")
    assert main(tiny.arguments(tmp_path / "prefix")) == 3
    message = capsys.readouterr().err
    locked, found = (upload.sha256 for upload in tiny.load().wheels[0].uploads)
    assert f"locked: sha256 {locked}, uploaded 2026-01-01 10:00 UTC from commit 1111111 (py3)" in message
    assert f"found:  sha256 {found}, uploaded 2026-01-02 10:00 UTC from commit 2222222 (py3)" in message
    assert StackFolder(tmp_path / "prefix" / "tiny").current is None


def test_a_file_that_is_no_known_upload_is_refused_as_that(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    next(tiny.wheelhouse.glob("torch-*.whl")).write_bytes(b"something else")
    assert main(tiny.arguments(tmp_path / "prefix")) == 3
    assert "none of the 2 known uploads of torch" in capsys.readouterr().err


def test_a_wheel_that_requires_more_than_was_stated_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    tiny = make_tiny_stack(tmp_path, torch_requires=("helper==1.0", "numpy>=2"))
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    out, err = capsys.readouterr()
    assert "torch 2.9.1+cu130: requires numpy>=2, which is not stated" in out
    assert "torch 2.9.1+cu130 requires numpy>=2, which is not in the lock" in err
    assert StackFolder(tmp_path / "prefix" / "tiny").current is None


def test_torch_of_another_build_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    tiny = make_tiny_stack(tmp_path, torch_build="2.9.1+cpu")
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "torch calls itself 2.9.1+cpu, and the definition says 2.9.1+cu130" in capsys.readouterr().err


def test_a_changed_build_is_not_called_unchanged(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    build = StackFolder(tmp_path / "prefix" / "tiny").current
    assert build is not None
    target = next(build.environment.glob("lib/python3.*/site-packages/helper/__init__.py"))
    target.unlink()
    target.write_text("answer = 4242\n")
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "helper: helper/__init__.py has 14 bytes instead of 12" in capsys.readouterr().err


OVERLAP = """
[[overlaps]]
winner = "{winner}"
over = "{loser}"
reason = "both have shared.py"
"""


@pytest.mark.parametrize(("winner", "loser"), [("aa", "bb"), ("bb", "aa")])
def test_the_winner_of_an_overlap_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winner: str, loser: str
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    wheels = tuple(
        make_wheel(tmp_path / "wheelhouse", name, "1.0", {"shared.py": f"name = '{name * 2}'\n"})
        for name in ("aa", "bb")
    )
    tiny = make_tiny_stack(tmp_path, extra=OVERLAP.format(winner=winner, loser=loser), more=wheels)
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    assert run_current(StackFolder(tmp_path / "prefix" / "tiny"), "import shared; print(shared.name)") == winner * 2


def test_an_undecided_overlap_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    wheels = tuple(
        make_wheel(tmp_path / "wheelhouse", name, "1.0", {"shared.py": f"name = '{name}'\n"}) for name in ("aa", "bb")
    )
    assert main(make_tiny_stack(tmp_path, more=wheels).arguments(tmp_path / "prefix")) == 1
    assert "aa and bb both install" in capsys.readouterr().err


def test_findings_of_the_abi_check_leave_the_stack_in_use_as_it_was(
    tiny: TinyStack, tmp_path: Path, capsys: Capture
) -> None:
    folder = StackFolder(tmp_path / "prefix" / "tiny")
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    good = folder.current
    source = tmp_path / "needy.c"
    source.write_text("void absent_function(void);\nvoid entry(void) { absent_function(); }\n")
    library = tmp_path / "libneedy.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    make_tiny_stack(tmp_path, helper_files={"helper/libneedy.so": library.read_bytes()})
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "absent_function" in capsys.readouterr().err
    assert folder.current == good and folder.previous is None


def start_build(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "stack", *arguments],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_killed_at_twenty_random_moments_the_stack_in_use_is_whole(tiny: TinyStack, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    folder = StackFolder(prefix / "tiny")
    start = time.monotonic()
    assert start_build(tiny.arguments(prefix)).wait(120) == 0
    whole_build = time.monotonic() - start
    moments = random.Random(20)
    for number in range(20):
        # Another content and so another lock each time: there is always something to build.
        make_tiny_stack(tmp_path, helper_files={"helper/__init__.py": f"answer = {number}\n"})
        build = start_build(tiny.arguments(prefix))
        time.sleep(moments.uniform(0, whole_build))
        os.kill(build.pid, signal.SIGKILL)
        build.wait(60)
        current = folder.current
        assert current is not None and (folder.path / "current").resolve() == current.folder.resolve()
        found = compare(current.environment, read_lock(current.lock).versions, ())
        assert found.problems == ()
        assert run_current(folder, "import helper; print('whole')") == "whole"
    assert main(tiny.arguments(prefix)) == 0
    assert run_current(folder, "import helper; print(helper.answer)") == "19"


def test_a_second_build_waits_and_says_for_whom(tiny: TinyStack, tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "prefix" / "tiny")
    said: list[str] = []
    with folder.exclusive(said.append):
        second = subprocess.Popen(
            [sys.executable, "-m", "stack", *tiny.arguments(tmp_path / "prefix")],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdout is not None
        line = next(line for line in second.stdout if line.startswith("waiting"))
        assert f"is being built by process {os.getpid()} since 20" in line
        assert second.poll() is None
    assert second.communicate(timeout=120)[0] and second.returncode == 0
    assert said == []


def test_a_build_that_failed_after_installing_goes_on_from_there(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    build = StackFolder(tmp_path / "prefix" / "tiny").build(read_lock(tiny.load().lock_path(PYTHON)).build_name)
    monkeypatch.setattr("stack.build.check_environment", lambda *rest, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(tiny.arguments(tmp_path / "prefix"))
    assert build.installed_from(read_lock(build.lock).sha256) and not build.complete
    (helper,) = build.environment.glob("lib/python3.*/site-packages/helper/__init__.py")
    inode = helper.stat().st_ino
    monkeypatch.undo()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another cache"))
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    assert build.complete and not build.installed.exists() and helper.stat().st_ino == inode


def test_what_was_damaged_before_the_build_went_on_is_installed_anew(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    build = StackFolder(tmp_path / "prefix" / "tiny").build(read_lock(tiny.load().lock_path(PYTHON)).build_name)
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    build.manifest.unlink()
    build.installed.write_text(read_lock(build.lock).sha256)
    (helper,) = build.environment.glob("lib/python3.*/site-packages/helper/__init__.py")
    helper.unlink()
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    assert "Build again to start anew" in capsys.readouterr().err
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    assert helper.is_file() and build.complete


def test_wheels_that_would_not_load_are_refused_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    broken = compile_object(tmp_path / "ext.so", "int gone(void); int f(void) { return gone(); }").read_bytes()
    wheel = make_wheel(tmp_path / "wheelhouse", "broken", "1.0", {"broken/_ext.so": broken})
    tiny = make_tiny_stack(tmp_path, more=(wheel,))
    assert main(tiny.arguments(tmp_path / "prefix")) == 1
    captured = capsys.readouterr()
    assert "the wheels would not make a working stack, and nothing was installed" in captured.err
    assert "broken/_ext.so: undefined symbol: gone" in captured.err
    assert "install with hashes required" not in captured.out
    assert not list((tmp_path / "prefix" / "tiny" / "builds").glob("*/env"))
