"""The documentation builds, and every command in it is run by a test, or says why it can't be."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from uv import find_uv_bin

from stack.build import FILL, JUDGE
from stack.cli import COMMANDS
from tests.conftest import environment_prefix

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]
TABLE: list[dict[str, Any]] = tomllib.loads((PROJECT / "tests" / "docs_commands.toml").read_text())["command"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(abi-check|cu130-stack|python3[.\d]*|source|cd|apt|docker|podman|uv|pip|nox|some-command|~/\S+) "
)

FAILED = """\
Traceback (most recent call last):
  File "server.py", line 1, in <module>
    import sgl_kernel
ImportError: /env/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib
"""


def documented() -> Iterator[tuple[str, str]]:
    """Page and command, without its comment and in one line."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in ("", "sh"):
                for line in block.replace("\\\n", " ").splitlines():
                    if COMMAND.match(line):
                        yield page.name, " ".join(re.sub(r"\s+#.*", "", line).split())


def test_every_command_is_accounted_for() -> None:
    known = {row["text"] for row in TABLE}
    assert len(known) == len(TABLE)
    assert [f"{page}: {command}" for page, command in documented() if command not in known] == []
    assert sorted(known - {command for _, command in documented()}) == []


def test_the_steps_that_the_readme_shows_are_those_of_a_build() -> None:
    shown = re.findall(r"^  (.+) …$", (PROJECT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [step.title for step in FILL + JUDGE]


def test_what_stands_for_a_command_exists() -> None:
    for row in TABLE:
        assert len({"test", "gpu", "why"} & row.keys()) <= 1, row
        if "test" in row:
            file, _, function = row["test"].partition("::")
            assert re.search(rf"^def {function}\(", (PROJECT / file).read_text(), re.MULTILINE), row
        if "gpu" in row:
            assert (PROJECT / row["gpu"]).stat().st_size > 0, row


def test_every_sub_command_is_documented() -> None:
    words = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in COMMANDS if f"cu130-stack {name}" not in words] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name: logs, locks, the definition of own-stack.md, an environment."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("docs", "lockfiles", "noxfile.py"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / "server.log").write_text(FAILED)
    (folder / "requirements.txt").write_text("packaging==24.1\n")
    (definition,) = re.findall(r"^```toml\n(name = .*?)^```", (PROJECT / "docs/own-stack.md").read_text(), re.M | re.S)
    (folder / "mine.toml").write_text(definition)
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", sys.executable, "venv"], cwd=folder, check=True)
    return folder


def run_documented(row: dict[str, Any], place: Path) -> None:
    prefix = environment_prefix()
    where = {name: str(prefix / stack / "current") for name, stack in (("pypi", "cu130-pypi"), ("cu128", "cu128"))}
    text = row.get("run", row["text"]).format(prefix=prefix, venv=place / "venv", **where)
    program, *arguments = shlex.split(text)
    modules = {"abi-check": "abi_checks", "cu130-stack": "stack", "nox": "nox"}
    command = [sys.executable, "-m", modules[program], *arguments] if program in modules else [program, *arguments]
    path = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    answer = subprocess.run(
        command,
        cwd=place,
        input=FAILED,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    assert answer.returncode == row.get("exit", 0), answer.stdout[-3000:] + answer.stderr[-3000:]


RUN = [row for row in TABLE if not {"test", "gpu", "why"} & row.keys()]


@pytest.mark.parametrize("row", [row for row in RUN if not row.get("built")], ids=lambda row: row["text"])
def test_a_documented_command(row: dict[str, Any], place: Path) -> None:
    run_documented(row, place)


@pytest.mark.environment
@pytest.mark.parametrize("row", [row for row in RUN if row.get("built")], ids=lambda row: row["text"])
def test_a_documented_command_on_real_stacks(row: dict[str, Any], place: Path, built_stack: Any) -> None:
    built_stack("cu130-pypi")
    if "{cu128}" in row.get("run", ""):
        built_stack("cu128")
    run_documented(row, place)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    answer = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "first-hour" / "index.html").is_file() and (tmp_path / "report.svg").is_file()


def test_the_hook_and_the_workflow_call_what_exists() -> None:
    (hook,) = yaml.safe_load((PROJECT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["entry"], hook["language"]) == ("abi-check", "abi-check", "python")
    pattern = re.compile(hook["files"])
    assert all(
        pattern.search(name) for name in ("requirements.txt", "a/requirements-cu130.txt", "uv.lock.txt", "x.whl")
    )
    assert not any(pattern.search(name) for name in ("README.txt", "requirements.in", "pyproject.toml"))
    workflow = yaml.safe_load((PROJECT / "docs/examples/abi-check.yml").read_text())
    steps = workflow["jobs"]["abi-check"]["steps"]
    judge = next(step["run"] for step in steps if step.get("name") == "Judge the lock")
    assert 'abi-check "$LOCK" --format sarif --output abi-check.sarif' in judge
    upload = next(step for step in steps if "upload-sarif" in step.get("uses", ""))
    assert upload["with"]["sarif_file"] == "abi-check.sarif"
    subprocess.run(["sh", "-n"], input=judge, text=True, check=True, timeout=30)


def test_the_picture_of_the_readme_is_there_and_needs_nothing_else() -> None:
    picture = (PROJECT / "docs" / "report.svg").read_text()
    assert "docs/report.svg" in (PROJECT / "README.md").read_text()
    assert "c10_cuda_check_implementation" in picture and "@font-face" not in picture and "url(http" not in picture
