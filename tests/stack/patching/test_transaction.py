"""A kill at every single step that touches the file system leaves the state before or the state after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UserError
from stack.patching import engine
from stack.patching.environment import Environment
from stack.patching.series import Series
from stack.patching.status import State
from stack.patching.transaction import WORK_FOLDER, Change, commit, exclusive
from tests.stack.patching.conftest import sha256, tree

AllSeries = tuple[Series, ...]

# Events that Python raises just before a system call on files (docs.python.org, "Audit events table").
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree"}


def _killed_at(step: int, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that kills itself at its ``step``-th event; False where it ended well before that."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event: str, arguments: object) -> None:
            nonlocal seen
            if event in _EVENTS:
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def _kill_after_the_decision(environment: Environment, all_series: AllSeries, step: int = 1) -> int:
    """Leave an apply of the default patches killed as soon as its journal is in place; returns the step after that one.

    The search begins at ``step``.
    """
    while not (environment.site_packages / WORK_FOLDER / "journal.json").exists():
        assert _killed_at(step, lambda: engine.apply(environment, all_series, ()))
        step += 1
    return step


@pytest.mark.parametrize("direction", ["apply", "revert"])
def test_a_kill_leaves_either_state_never_a_third(
    environment: Environment, all_series: AllSeries, direction: str
) -> None:
    build = environment.site_packages.parents[3]
    names = ["base", "over", "both"]
    unpatched = tree(build)
    engine.apply(environment, all_series, names)
    patched = tree(build)
    start, act, undo = unpatched, engine.apply, engine.revert
    if direction == "revert":
        start, act, undo = patched, engine.revert, engine.apply
    kills, mixed, ends = 0, 0, []
    while True:
        undo(environment, all_series, names)
        assert tree(build) == start
        if not _killed_at(kills + 1, lambda: act(environment, all_series, names)):
            break
        kills += 1
        left = {path: data for path, data in tree(build).items() if WORK_FOLDER not in path}
        mixed += left not in (unpatched, patched)
        settled = {status.state for status in engine.status(environment, all_series)}
        assert tree(build) in (unpatched, patched)
        assert settled == {State.APPLIED if tree(build) == patched else State.NOT_APPLIED}
        ends.append(tree(build) != start)
    assert kills >= 50
    # The sweep crossed the moment of decision once, and some kills fell between two renames.
    assert ends == sorted(ends)
    assert set(ends) == {True, False}
    assert mixed > 0


def test_a_kill_while_finishing_is_finished_by_the_next_command(
    environment: Environment, all_series: AllSeries
) -> None:
    build = environment.site_packages.parents[3]
    engine.apply(environment, all_series, ())
    patched = tree(build)
    kills = 0
    step = 2
    while True:
        engine.revert(environment, all_series, ())
        step = _kill_after_the_decision(environment, all_series, step - 1)
        if not _killed_at(kills + 1, lambda: engine.status(environment, all_series)):
            break
        kills += 1
        engine.status(environment, all_series)
        assert tree(build) == patched
    assert tree(build) == patched
    assert kills > len(patched)


def test_a_file_edited_between_a_kill_and_the_next_command_is_named(
    environment: Environment, all_series: AllSeries
) -> None:
    _kill_after_the_decision(environment, all_series)
    (environment.site_packages / "alpha/two.py").write_bytes(b"mine\n")
    before = tree(environment.site_packages)
    with pytest.raises(UserError, match=r"alpha/two\.py: was changed by something else while a patch was under way"):
        engine.apply(environment, all_series, ())
    assert tree(environment.site_packages) == before


def test_a_damaged_journal_is_named(environment: Environment, all_series: AllSeries) -> None:
    work = environment.site_packages / WORK_FOLDER
    work.mkdir()
    (work / "journal.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(SourceError, match=r"journal\.json: cannot read the journal of an interrupted change"):
        engine.status(environment, all_series)


def test_a_second_command_waits_for_the_first(environment: Environment) -> None:
    script = (
        "import sys, pathlib; from stack.patching.transaction import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])): print('in', flush=True)\n"
    )
    with exclusive(environment.site_packages):
        second = subprocess.Popen(
            [sys.executable, "-c", script, str(environment.site_packages)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=1)
    assert second.communicate(timeout=60)[0] == "in\n"


def test_a_write_that_fails_changes_nothing(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    file = environment.site_packages / "alpha/one.py"
    before = tree(environment.site_packages)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device", "staged")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SourceError, match="No space left on device"), exclusive(environment.site_packages):
        commit(environment.site_packages, [Change(file, sha256(file.read_bytes()), b"new\n")])
    monkeypatch.undo()
    with exclusive(environment.site_packages):
        pass
    assert tree(environment.site_packages) == before
