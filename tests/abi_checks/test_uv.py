"""One program run for the rest of the project: what it is given, what comes back, and how it is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from abi_checks import uv
from abi_checks.errors import SourceError
from abi_checks.uv import UvResult, run_uv, uv_cache

StandIn = Callable[[str], None]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """Puts a shell script in uv's place."""

    def put(script: str) -> None:
        program = tmp_path / "uv"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(uv, "find_uv_bin", lambda: str(program))

    return put


def test_both_streams_the_input_and_the_exit_code(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in('echo "$@"; pwd; echo "$NO_COLOR $EXTRA $HOME"; cat; echo one >&2; echo >&2; echo two >&2; exit 3')
    (tmp_path / "there").mkdir()
    told: list[str] = []
    long = "word " * 100_000
    result = run_uv(
        ["pip", "sync"],
        folder=tmp_path / "there",
        timeout=20,
        stdin=long,
        environment={"EXTRA": "kept", "PATH": os.environ["PATH"]},
        on_message=told.append,
    )
    assert result == UvResult(3, f"pip sync\n{tmp_path / 'there'}\n1 kept \n{long}", "one\n\ntwo\n")
    assert told == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pip", "compile", "-"], r"uv pip compile did not end within 0\.3 s; is the index reachable\?$"),
        (["venv"], r"uv venv did not end within 0\.3 s$"),
    ],
)
def test_a_uv_that_does_not_answer_is_ended_with_all_it_started(
    stand_in: StandIn, tmp_path: Path, arguments: list[str], message: str
) -> None:
    stand_in(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(SourceError, match=message):
        run_uv(arguments, folder=tmp_path, timeout=0.3)
    status = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    for _ in range(100):  # the kernel ends the group's other processes a moment later
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what uv started still runs")


def test_a_missing_uv_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(tmp_path / "uv"))
    with pytest.raises(SourceError, match=r"uv could not be started: .*install it again"):
        uv_cache(tmp_path)


def test_the_cache_is_where_uv_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "kept"))
    assert uv_cache(tmp_path) == tmp_path / "kept"


def test_a_cache_that_uv_does_not_tell(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in("echo 'error: no home' >&2; exit 2")
    with pytest.raises(SourceError) as error:
        uv_cache(tmp_path)
    assert str(error.value) == "uv does not say where its cache is:\nerror: no home"
