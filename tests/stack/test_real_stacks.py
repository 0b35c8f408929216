"""The packaged stacks, built for real from the package index (or uv's cache), and killed while they are built."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.cli import main
from stack.definition import load_definition
from stack.files import remove_tree, write_text
from stack.installed import compare
from stack.lock import current_lock, make_lock
from stack.lockfile import read_lock
from stack.prefix import Build, StackFolder
from tests.conftest import environment_prefix

pytestmark = pytest.mark.environment

PROJECT = Path(__file__).resolve().parents[2]
UNREACHABLE = [f"https://{host}=https://unreachable.invalid" for host in ("download.pytorch.org", "github.com")]
MIRRORS = [word for mirror in UNREACHABLE for word in ("--mirror", mirror)]


@pytest.mark.parametrize(("name", "torch"), [("cu128", "2.9.1+cu128"), ("cu130-pypi", "2.11.0+cu130")])
@pytest.mark.timeout(1500)
def test_a_stack_builds_clean_and_is_what_its_lock_says(
    built_stack: Callable[[str], Build], name: str, torch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build = built_stack(name)
    manifest = json.loads(build.manifest.read_text())
    assert [f for f in manifest["findings"] if f["severity"] == "error" or f["check"] == "unused-waiver"] == []
    assert any(finding["waived"] for finding in manifest["findings"])
    definition = load_definition(name)
    assert manifest["distributions"] == current_lock(definition, "3.12").versions
    version = "import torch; print(torch.__version__)"
    said = subprocess.run(
        [str(build.environment / "bin" / "python"), "-c", version], capture_output=True, text=True, timeout=250
    )
    assert said.stdout.strip() == torch, said.stderr
    capsys.readouterr()
    assert main(["verify", "--stack", name, "--prefix", str(environment_prefix())]) == 0
    assert ": as locked; " in capsys.readouterr().out
    assert main(["build", "--stack", name, "--python", "3.12", "--prefix", str(environment_prefix())]) == 0
    assert "already built and unchanged" in capsys.readouterr().out


NAMES_OF_ROUTES = """
from starlette.requests import Request
from sglang.srt.entrypoints.http_server import app
from sglang.srt.utils.common import _get_fastapi_request_path
for path in ("/v1/loads", "/health", "/nowhere"):
    scope = {"type": "http", "app": app, "method": "GET", "path": path, "headers": [], "root_path": ""}
    print(path, *_get_fastapi_request_path(Request(scope)))
"""


@pytest.mark.timeout(1500)
def test_sglang_names_the_route_of_every_request(built_stack: Callable[[str], Build]) -> None:
    """Its request counter does, with --enable-metrics; with FastAPI 0.137.0 and later it fails at /v1/loads."""
    python = built_stack("cu130-pypi").environment / "bin" / "python"
    said = subprocess.run([str(python), "-c", NAMES_OF_ROUTES], capture_output=True, text=True, timeout=250)
    wanted = ["/v1/loads /v1/loads True", "/health /health True", "/nowhere /nowhere False"]
    assert said.stdout.splitlines()[-3:] == wanted, said.stderr


@pytest.mark.timeout(1500)
def test_every_file_of_a_stack_has_the_hash_of_its_record(
    built_stack: Callable[[str], Build], capsys: pytest.CaptureFixture[str]
) -> None:
    built_stack("cu128")
    capsys.readouterr()
    assert main(["verify", "--stack", "cu128", "--deep", "--prefix", str(environment_prefix())]) == 0
    assert "GiB hashed" in capsys.readouterr().out


@pytest.mark.timeout(1500)
def test_without_an_option_the_next_stack_is_built_and_the_reason_recorded(
    built_stack: Callable[[str], Build], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built_stack("cu130-pypi")
    capsys.readouterr()
    try:
        assert main(["build", "--python", "3.12", "--prefix", str(tmp_path / "prefix"), *MIRRORS]) == 0
        output = capsys.readouterr().out
        first = output.index("  instead of cu130, of which 4 wheels cannot be had from here:")
        last = output.rindex("  instead of cu130, of which 4 wheels cannot be had from here:")
        assert output.startswith("stack cu130-pypi for Python 3.12") and first < last
        current = StackFolder(tmp_path / "prefix" / "cu130-pypi").current
        assert current is not None
        missing = json.loads(current.manifest.read_text())["passed_over"]["cu130"]
        assert sorted(missing) == [
            "sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl",
            "torch-2.9.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl",
            "torchaudio-2.9.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl",
            "torchvision-0.24.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl",
        ]
        assert set(missing.values()) == {missing["torch-2.9.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl"]}
    finally:
        shutil.rmtree(tmp_path / "prefix", ignore_errors=True)


def test_insisting_on_cu130_where_its_hosts_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "--stack", "cu130", "--python", "3.12", "--prefix", str(tmp_path / "p"), *MIRRORS]) == 3
    message = capsys.readouterr().err
    assert "cu130: 4 wheels cannot be had from here" in message
    for wheel in load_definition("cu130").wheels:
        assert f"    {wheel.file_for('3.12').filename}\n" in message
    assert "--wheelhouse DIR" in message and "--mirror" in message and "--stack cu130-pypi" in message
    assert not (tmp_path / "p").exists()


FOUR = {"torch": "2.9.1", "torchvision": "0.24.1", "torchaudio": "2.9.1", "sgl-kernel": "0.3.21"}
REQUIRES = {
    "torch": ["filelock", "typing-extensions", "setuptools", "sympy", "networkx", "jinja2", "fsspec", "triton==3.5.1"],
    "torchvision": ["numpy", "torch==2.9.1", "pillow!=8.3.*,>=5.3.0"],
    "torchaudio": ["torch==2.9.1"],
    "sgl-kernel": [],
}


@pytest.fixture(scope="module")
def four_wheels() -> Path:
    """A wheelhouse with the CUDA 12.8 builds of the four wheels, downloaded once into the cache folder."""
    folder = environment_prefix().parent / "four-wheels"
    missing = [
        f"{name}=={version}"
        for name, version in FOUR.items()
        if not list(folder.glob(f"{name.replace('-', '_')}-*.whl"))
    ]
    if missing:
        platforms = [word for tag in ("manylinux_2_28_x86_64", "manylinux2014_x86_64") for word in ("--platform", tag)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            *platforms,
        ]
        subprocess.run([*command, "--python-version", "3.12", "--dest", str(folder), *missing], check=True, timeout=900)
    return folder


def cu128_by_wheelhouse(folder: Path, wheelhouse: Path) -> Path:
    """A definition as cu130 is one: the four wheels are on no index; the files are those of cu128."""
    cu128 = load_definition("cu128")
    locked = {item.name: item for item in current_lock(cu128, "3.12").distributions}
    text = cu128.path.read_text().replace('name = "cu128"', 'name = "by-wheelhouse"', 1)
    text = text.replace('pythons = ["3.11", "3.12"]', 'pythons = ["3.12"]')
    torch_pin = text.index('[[requirements]]\npin = "torch==2.9.1"')
    text = text[:torch_pin] + text[text.index("[[requirements]]", torch_pin + 1) :]
    nvidia = [f"{name}=={item.version}" for name, item in locked.items() if name.endswith("-cu12")]
    for name, version in FOUR.items():
        file = next(wheelhouse.glob(f"{name.replace('-', '_')}-*.whl"))
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        assert digest in locked[name].hashes
        requires = [*REQUIRES[name], *(nvidia if name == "torch" else [])]
        text += f'''
[[wheels]]
name = "{name}"
version = "{version}"
reason = "to take the path of a wheel that is on no index"
requires_dist = {json.dumps(requires)}
[[wheels.files]]
pythons = ["3.12"]
file = "{file.name}"
sha256 = "{digest}"
'''
    path = folder / "by-wheelhouse.toml"
    path.write_text(text)
    return path


@pytest.mark.timeout(1500)
def test_the_path_of_cu130_with_its_four_wheels_from_a_wheelhouse(
    four_wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cu128_by_wheelhouse(tmp_path, four_wheels)
    assert main(["lock", "--stack", str(path)]) == 0
    arguments = ["build", "--stack", str(path), "--python", "3.12", "--prefix", str(tmp_path / "prefix")]
    try:
        assert main(arguments) == 3
        assert "4 wheels cannot be had from here" in capsys.readouterr().err
        assert main([*arguments, "--wheelhouse", str(four_wheels)]) == 0
        current = StackFolder(tmp_path / "prefix" / "by-wheelhouse").current
        assert current is not None
        manifest = json.loads(current.manifest.read_text())
        assert manifest["distributions"] == current_lock(load_definition("cu128"), "3.12").versions
        assert {entry["origin"] for entry in manifest["sources"]["direct"].values()} == {"wheelhouse"}
        assert [f for f in manifest["findings"] if f["severity"] == "error"] == []
        # The statement has no markers, which the real torch has, and the difference is recorded.
        assert any(text.startswith("torch 2.9.1: requires ") for text in manifest["metadata_differences"])
    finally:
        shutil.rmtree(tmp_path / "prefix", ignore_errors=True)


@pytest.mark.timeout(1500)
def test_a_real_stack_killed_at_twenty_random_moments_is_whole(
    built_stack: Callable[[str], Build], tmp_path: Path
) -> None:
    built_stack("cu128")
    smaller = tmp_path / "cu128.toml"
    smaller.write_text(load_definition("cu128").path.read_text().replace("as_of = 2026-02-25", "as_of = 2026-02-24"))
    write_text(load_definition(str(smaller)).lock_path("3.12"), make_lock(load_definition(str(smaller)), "3.12").text)
    prefix = tmp_path / "prefix"
    folder = StackFolder(prefix / "cu128")
    variants = ["cu128", str(smaller)]

    def command(stack: str) -> list[str]:
        options = ["--stack", stack, "--python", "3.12", "--prefix", str(prefix)]
        return [sys.executable, "-m", "stack", "build", *options]

    try:
        times = []
        for stack in variants:
            start = time.monotonic()
            subprocess.run(command(stack), cwd=PROJECT, check=True, stdout=subprocess.DEVNULL, timeout=600)
            times.append(time.monotonic() - start)
        moments = random.Random(130)
        for _ in range(20):
            current = folder.current
            assert current is not None
            # Only a complete one, so that there is something to build: what a kill left, the next build removes.
            for other in (folder.path / "builds").iterdir():
                if other != current.folder and Build(other).complete:
                    remove_tree(other)
            names = {current_lock(load_definition(stack), "3.12").build_name: stack for stack in variants}
            target = next(stack for name, stack in names.items() if name != current.folder.name)
            build = subprocess.Popen(command(target), cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(moments.uniform(0, min(times)))
            os.kill(build.pid, signal.SIGKILL)
            build.wait(60)
            current = folder.current
            assert current is not None and (folder.path / "current").resolve() == current.folder.resolve()
            overlaps = json.loads(current.manifest.read_text())["overlaps"]
            found = compare(current.environment, read_lock(current.lock).versions, [(a, b) for a, b in overlaps])
            assert found.problems == ()
    finally:
        shutil.rmtree(prefix, ignore_errors=True)
