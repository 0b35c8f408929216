"""Choosing a container tool, and what it is told; the image itself is built by the test marked ``environment``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stack.cli import main
from stack.definition import DEFINITIONS
from stack.image import Engine, build_arguments, find_engine
from stack.revision import CHECKOUT

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH; scripts in it write their arguments to ``log``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return folder


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $@" >> "$LOG"\n{body}\n')
    path.chmod(0o755)


def test_a_client_without_its_daemon_does_not_count(tools: Path) -> None:
    tool(tools, "docker", 'test "$1" != version')
    tool(tools, "buildah", "exit 0")
    assert find_engine() == Engine("buildah")
    tool(tools, "podman", "exit 0")
    assert find_engine() == Engine("podman")
    tool(tools, "docker", "exit 0")
    assert find_engine() == Engine("docker")


def test_no_tool_works(tools: Path, capsys: Capture) -> None:
    tool(tools, "docker", "exit 1")
    assert main(["image", "--stack", "cu130"]) == 3
    error = capsys.readouterr().err
    assert "docker: is installed and does not work here" in error and "podman: is not installed" in error


def test_the_whole_run_with_buildah(tools: Path, tmp_path: Path, capsys: Capture) -> None:
    tool(tools, "buildah", 'case "$*" in *" from "*) echo working-container;; esac')
    assert main(["image", "--stack", "cu130", "--tag", "localhost/x"]) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    build = next(line for line in lines if " bud " in line)
    assert "--format docker --isolation chroot" in build and "--build-arg STACK=cu130" in build
    assert "--target runtime --tag localhost/x" in build and "BASE=" not in build
    check = "run --isolation chroot working-container -- /opt/tool/bin/abi-check /opt/cu130-stack/cu130/current/env"
    assert any(line.endswith(check) for line in lines)
    assert lines[-1] == "buildah --storage-driver overlay rm working-container"
    assert "localhost/x: built, and abi-check in it finds no errors" in capsys.readouterr().out


def test_a_build_that_stops_makes_no_image(tools: Path, tmp_path: Path, capsys: Capture) -> None:
    tool(tools, "podman", 'test "$1" != build')
    assert main(["image", "--stack", "cu130"]) == 1
    assert "localhost/cu130-stack:cu130: no image was made" in capsys.readouterr().err
    assert not any(" run " in line for line in (tmp_path / "log").read_text().splitlines())


def test_errors_found_in_the_image_fail_the_command(tools: Path, capsys: Capture) -> None:
    tool(tools, "podman", 'test "$1" != run')
    assert main(["image", "--stack", "cu130"]) == 1
    assert "abi-check finds errors in the image" in capsys.readouterr().err


def test_a_python_without_a_lock_is_refused(tools: Path, capsys: Capture) -> None:
    tool(tools, "apt-cache", 'printf "Package: python3\\nVersion: 3.13.5-1\\n"')
    assert main(["image", "--stack", "cu130-pypi", "--stand-in"]) == 2
    assert "cu130-pypi cannot be had for Python 3.13" in capsys.readouterr().err


def test_a_stand_in_needs_debootstrap(tools: Path, capsys: Capture) -> None:
    tool(tools, "apt-cache", 'printf "Version: 3.12.3-1\\n"')
    tool(tools, "podman", 'test "$1" != image')
    assert main(["image", "--stack", "cu130-pypi", "--stand-in"]) == 3
    assert "debootstrap, which is not installed" in capsys.readouterr().err


def test_labels_and_the_wheelhouse_are_passed_on(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("x")
    arguments = build_arguments("cu130", "t", lock, True, tmp_path)
    assert f"LOCK_SHA256={hashlib.sha256(b'x').hexdigest()}" in arguments
    assert arguments.count("--build-arg") == 5 and f"wheels={tmp_path}" in arguments
    assert "BASE=localhost/cu130-stack-stand-in" in arguments and arguments[-1] == str(CHECKOUT)


DOCKERFILE = (CHECKOUT / "Dockerfile.cu130").read_text()


def test_bases_are_pinned_by_digest() -> None:
    for name in ("BASE", "RUNTIME"):
        assert re.search(rf"^ARG {name}=docker\.io/nvidia/cuda:13\.0\.1-\S+@sha256:[0-9a-f]{{64}}$", DOCKERFILE, re.M)


def test_the_gigabytes_depend_on_the_lock_alone() -> None:
    """Nothing of this project's code is copied before the layer that installs the stack."""
    before = DOCKERFILE.rpartition("install.sh")[0]
    copied = [line for line in before.splitlines() if line.startswith(("COPY", "ADD"))]
    assert copied == [
        "COPY LICENSE /",
        "COPY lockfiles/tool.txt /tmp/tool.txt",
        "COPY --from=tool /opt/tool/bin/uv /usr/local/bin/uv",
        "COPY docker/install.sh lockfiles/${STACK}-py3*.txt /opt/locks/",
    ]


def test_there_is_no_second_list_of_pins() -> None:
    assert "==" not in DOCKERFILE.replace('"$1" = ', "")


def test_the_context_has_what_the_wheel_needs() -> None:
    kept = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {"LICENSE", "README.md", "abi_checks", "docker", "lockfiles", "pyproject.toml", "stack"}
    assert DEFINITIONS.is_relative_to(CHECKOUT / "stack")


def test_the_toolkit_of_the_wheels_gets_the_layout_of_a_toolkit(tmp_path: Path) -> None:
    toolkit = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13"
    for name in ("bin/nvcc", "include/cuda.h", "nvvm/bin/cicc", "lib/libcudart.so.13", "lib/libcudadevrt.a"):
        (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / name).write_text(name)
        (toolkit / name).chmod(0o755)
    script = CHECKOUT / "docker" / "cuda_home.sh"
    subprocess.run([script, tmp_path / "env", tmp_path / "cuda"], check=True, timeout=30)
    found = {
        path.relative_to(tmp_path / "cuda").as_posix(): path.read_text() for path in (tmp_path / "cuda/lib64").iterdir()
    }
    assert found == {
        "lib64/libcudart.so.13": "lib/libcudart.so.13",
        "lib64/libcudart.so": "lib/libcudart.so.13",
        "lib64/libcudadevrt.a": "lib/libcudadevrt.a",
    }
    assert (tmp_path / "cuda/bin/nvcc").read_text() == "bin/nvcc"
    shutil.rmtree(toolkit / "bin")
    answer = subprocess.run([script, tmp_path / "env", tmp_path / "none"], capture_output=True, text=True, timeout=30)
    assert answer.returncode == 0 and "has no CUDA compiler" in answer.stderr and not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["install.sh", "cuda_home.sh"])
def test_scripts_are_plain_sh(name: str) -> None:
    subprocess.run(["sh", "-n", CHECKOUT / "docker" / name], check=True, timeout=30)
    assert os.access(CHECKOUT / "docker" / name, os.X_OK)


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "hadolint"
    answer = subprocess.run([program, CHECKOUT / "Dockerfile.cu130"], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stdout) == (0, "")


@pytest.mark.environment
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.environ.get("CU130_STACK_IMAGE_TEST") != "1", reason="25 GB and root; set CU130_STACK_IMAGE_TEST=1 to build it"
)
def test_the_stand_in_image_builds_and_says_the_same_inside() -> None:
    image = "localhost/cu130-stack:test"
    assert main(["image", "--stack", "cu130-pypi", "--stand-in", "--tag", image]) == 0
    buildah = ["buildah", "--storage-driver", "overlay"]
    container = buildah_output([*buildah, "from", "--pull-never", image]).strip()
    try:
        root = Path(buildah_output([*buildah, "mount", container]).strip())
        stack = root / "opt" / "cu130-stack" / "cu130-pypi"
        environment = stack / (stack / "current").readlink() / "env"
        command = [*buildah, "run", "--isolation", "chroot", container, "--"]
        judged = "/opt/cu130-stack/cu130-pypi/current/env"
        inside = buildah_output([*command, "/opt/tool/bin/abi-check", judged, "--format", "json"])
        outside = buildah_output([sys.executable, "-m", "abi_checks", str(environment), "--format", "json"])
        assert verdicts(inside) == verdicts(outside)
        # Kernels are compiled on first use: the compiler of the stack's own wheels works, and there is a linker for it.
        source = "echo '__global__ void k() {}' > /tmp/k.cu; cd /tmp; nvcc=$CUDA_HOME/bin/nvcc; "
        compile = "$nvcc -arch=sm_120 -shared -Xcompiler -fPIC -cudart shared -L$CUDA_HOME/lib64 -o k.so k.cu; id -u"
        assert buildah_output([*command, "sh", "-ec", source + compile]).split()[-1] == "10001"
    finally:
        subprocess.run([*buildah, "rm", container], stdout=subprocess.DEVNULL, timeout=300)
        subprocess.run([*buildah, "rmi", image], stdout=subprocess.DEVNULL, timeout=300)


def buildah_output(command: list[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=CHECKOUT)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def verdicts(report: str) -> dict[str, tuple[object, ...]]:
    """Object → verdict, missing libraries and unresolved symbols."""
    return {
        item["path"]: (item["verdict"], item["missing_libraries"], item["unresolved_symbols"])
        for item in json.loads(report)["objects"]
    }
