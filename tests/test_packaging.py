"""This project as others get it: wheel and source archive installed in a clean environment, and its own lock."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from abi_checks.sources.lockfile import read_lock
from stack import __version__

PROJECT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    answer = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive; the wheel is built from the archive."""
    folder = tmp_path_factory.mktemp("dist")
    run(find_uv_bin(), "build", "--out-dir", folder, PROJECT, cwd=folder)
    assert sorted(path.name for path in folder.iterdir() if path.name != ".gitignore") == [
        f"cu130_stack-{__version__}-py3-none-any.whl",
        f"cu130_stack-{__version__}.tar.gz",
    ]
    return folder


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_copy_works_alone(built: Path, tmp_path: Path, kind: str) -> None:
    (archive,) = built.glob(kind)
    run(find_uv_bin(), "venv", "--python", sys.executable, "env", cwd=tmp_path)
    run(find_uv_bin(), "pip", "install", "--python", "env/bin/python", archive, cwd=tmp_path)
    scripts = tmp_path / "env" / "bin"
    assert run(scripts / "cu130-stack", "--version", cwd=tmp_path).strip() == f"cu130-stack {__version__}"
    # The locks and definitions came along: a lock is found, and is the one of the checkout.
    code = (
        "from stack.definition import load_definition as load; from stack.lock import current_lock as lock\n"
        "print(lock(load('cu130-pypi'), '3.12').sha256)"
    )
    inside = run(scripts / "python", "-I", "-c", code, cwd=tmp_path)
    checkout = run(sys.executable, "-c", code, cwd=PROJECT)
    assert inside == checkout
    # abi-check judges its own environment with what it installed.
    report = json.loads(run(scripts / "abi-check", "env", "--format", "json", cwd=tmp_path))
    assert {item["verdict"] for item in report["objects"]} == {"loads"}
    assert any(item["path"].endswith(".so") for item in report["objects"])


def test_the_source_archive_holds_the_tests_and_no_rubbish(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for name in ("noxfile.py", "bootstrap.py", "Dockerfile.cu130", "tests/test_packaging.py", "LICENSE", "README.md"):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "results"))]


@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_the_own_lock_meets_the_own_requirements(python: tuple[int, int]) -> None:
    """Else hosts without a network could not install the project; `nox -s lock_tool` makes the lock again."""
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted = [*document["project"]["dependencies"], *document["dependency-groups"]["offline"]]
    locked = {item.name: item.version for item in read_lock(PROJECT / "lockfiles" / "tool.txt", python)}
    for text in [*wanted, *document["build-system"]["requires"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text


def test_the_version_stands_in_one_place() -> None:
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert document["project"]["dynamic"] == ["version"]
    changes = (PROJECT / "CHANGELOG.md").read_text()
    assert f"## {__version__}" in changes
