"""Where wheels can be had from, decided with local servers and folders alone."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack import availability
from stack.availability import Availability, Missing, Origin, parse_mirrors, survey
from stack.choose import choose
from stack.cli import main
from stack.interpreters import find_interpreter
from stack.lock import current_lock
from tests.stack.tiny import PYTHON, TinyStack, make_tiny_stack, make_wheel

TORCH = "torch-2.9.1+cu130-py3-none-any.whl"
NOWHERE = "it is on no host, and no wheelhouse with it was given"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStack:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    # Port 9 of this machine refuses connections: an index that does not answer, without a name server.
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    return make_tiny_stack(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the folder ``served``, which begins empty."""
    (tmp_path / "served").mkdir()
    handler = functools.partial(QuietHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def look(tiny: TinyStack, wheelhouse: Path | None = None, mirrors: dict[str, str] | None = None) -> Availability:
    interpreter = find_interpreter(PYTHON)
    assert interpreter is not None
    definition = tiny.load()
    return survey(definition, current_lock(definition, PYTHON), interpreter, wheelhouse, mirrors or {})


def test_everything_in_a_wheelhouse(tiny: TinyStack) -> None:
    found = look(tiny, tiny.wheelhouse)
    assert found.missing == () and found.index is Origin.WHEELHOUSE
    assert [source.origin for source in found.direct] == [Origin.WHEELHOUSE]
    assert f"torch @ file://{tiny.wheelhouse}/torch-2.9.1%2Bcu130-py3-none-any.whl \\\n" in found.requirements()
    assert found.requirements({"helper"}).startswith("helper==1.0 \\\n") and "torch" not in found.requirements(
        {"helper"}
    )


def test_nothing_anywhere_names_every_wheel(tiny: TinyStack) -> None:
    found = look(tiny)
    assert [item.wheel for item in found.missing] == ["helper 1.0", TORCH]
    assert found.missing[0].reason.startswith("the package index does not answer (")
    assert found.missing[1] == Missing(TORCH, NOWHERE)


def serve_helper(folder: Path) -> None:
    """Make ``folder`` an index that has the helper."""
    wheel = make_wheel(folder / "helper", "helper", "1.0", {"helper/__init__.py": "answer = 42\n"})
    (folder / "helper" / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')


def test_an_index_that_answers_and_lacks_one(
    tiny: TinyStack, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server}/simple")
    assert look(tiny).missing[0] == Missing("helper 1.0", "the package index does not have it")
    serve_helper(tmp_path / "served" / "simple")
    found = look(tiny)
    assert found.missing == (Missing(TORCH, NOWHERE),) and found.index is Origin.NETWORK and found.to_download == 2


def test_what_uvs_cache_has_needs_no_network(
    tiny: TinyStack, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server}/simple")
    served = tmp_path / "served"
    serve_helper(served / "simple")
    os.link(tiny.wheelhouse / TORCH, served / TORCH)
    mirror = f"https://wheelhouse.invalid={server}"
    arguments = ["build", "--stack", str(tiny.definition), "--python", PYTHON, "--mirror", mirror]
    assert main([*arguments, "--prefix", str(tmp_path / "first")]) == 0
    for path in (served / TORCH, *(served / "simple" / "helper").iterdir()):
        path.unlink()
    found = look(tiny, None, parse_mirrors([mirror]))
    assert (found.missing, found.index, found.to_download) == ((), Origin.CACHE, 0)
    assert [source.origin for source in found.direct] == [Origin.CACHE]
    assert main([*arguments, "--prefix", str(tmp_path / "second")]) == 0


def test_a_mirror_is_asked_instead_of_the_host(tiny: TinyStack, server: str, tmp_path: Path) -> None:
    mirrors = parse_mirrors([f"https://wheelhouse.invalid={server}/files"])
    assert look(tiny, None, mirrors).missing[1] == Missing(TORCH, "127.0.0.1 answers 404 File not found")
    (tmp_path / "served" / "files").mkdir()
    os.link(tiny.wheelhouse / TORCH, tmp_path / "served" / "files" / TORCH)
    found = look(tiny, None, mirrors)
    assert [item.wheel for item in found.missing] == ["helper 1.0"]
    assert found.direct[0].address == f"{server}/files/torch-2.9.1%2Bcu130-py3-none-any.whl"


@pytest.mark.parametrize("silent", [False, True])
def test_hosts_that_refuse_and_hosts_that_are_silent(
    tiny: TinyStack, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(availability, "PROBE_SECONDS", 1.0)
    with http.server.HTTPServer(("127.0.0.1", 0), QuietHandler) as httpd:
        # Bound and never served: a connection is accepted and nothing is answered.
        port = httpd.server_port if silent else 9
        reason = look(tiny, None, {"https://wheelhouse.invalid/": f"http://127.0.0.1:{port}/"}).missing[1].reason
    assert ("timed out" in reason or "did not answer" in reason) if silent else "refused" in reason


def test_insisting_on_what_cannot_be_had_names_wheels_and_ways_out(
    tiny: TinyStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "--stack", str(tiny.definition), "--python", PYTHON, "--prefix", str(tmp_path / "p")]) == 3
    message = capsys.readouterr().err
    assert "tiny: 2 wheels cannot be had from here\n" in message and f"  {NOWHERE}:\n    {TORCH}\n" in message
    assert "--wheelhouse DIR" in message and "--mirror https://HOST=" in message and "--stack cu130-pypi" in message
    assert not (tmp_path / "p").exists()


def test_the_first_preferred_stack_that_can_be_had_is_chosen(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = make_tiny_stack(tmp_path / "second", name="second")
    monkeypatch.setattr("stack.choose.PREFERRED", (str(tiny.definition), str(second.definition)))
    (second.wheelhouse / TORCH).rename(tmp_path / "elsewhere.whl")
    choice = choose(None, PYTHON, tiny.wheelhouse, {})
    assert choice.availability.definition.name == "tiny" and choice.passed_over == {}
    with pytest.raises(SourceError, match=r"(?s)tiny: 1 wheels .*\nsecond: 1 wheels"):
        choose(None, PYTHON, second.wheelhouse, {})
    monkeypatch.setattr("stack.choose.PREFERRED", ("cu130", str(tiny.definition)))
    monkeypatch.setattr(availability, "PROBE_SECONDS", 1.0)
    choice = choose(None, PYTHON, tiny.wheelhouse, {"https://": "http://127.0.0.1:9/"})
    lines = choice.headline.splitlines()
    assert lines[0] == f"stack tiny for Python {PYTHON}: two tiny wheels"
    assert lines[1] == "  instead of cu130, of which 168 wheels cannot be had from here:"
    assert "      sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl" in lines


@pytest.mark.parametrize("value", ["h=https://m", "https://h", "https://h=ftp://m", ""])
def test_a_mirror_of_another_form_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="--mirror must be https://HOST=https://MIRROR/PATH"):
        parse_mirrors([value])


def test_a_wheelhouse_that_is_not_there(tiny: TinyStack, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such folder of wheels"):
        look(tiny, tmp_path / "absent")
