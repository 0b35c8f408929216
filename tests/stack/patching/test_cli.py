from __future__ import annotations

from pathlib import Path

import pytest

from stack.cli import main
from tests.stack.patching.conftest import install


def test_a_version_without_patches_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "sglang", "0.5.14", {"sglang/__init__.py": b""})
    assert main(["patch", "status", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("another version sm120-symmetric-memory (sglang 0.5.9; on by default): ")
    assert lines[1].strip() == "made for sglang 0.5.9, and 0.5.14 is installed"
    assert main(["patch", "apply", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("nothing to apply\n")
    assert main(["patch", "apply", str(tmp_path), "kimi-k25-eagle3"]) == 1
    assert "patch kimi-k25-eagle3: another version: made for sglang 0.5.9" in capsys.readouterr().err


def test_missing_files_are_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "sglang", "0.5.9", {"sglang/__init__.py": b""})
    assert main(["patch", "status", str(tmp_path)]) == 1
    assert "file missing    kimi-k25-eagle3" in capsys.readouterr().out
    assert main(["patch", "apply", str(tmp_path)]) == 1
    assert "file missing: sglang/srt/models/kimi_k25.py is not in" in capsys.readouterr().err


def test_diff_prints_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "sglang", "0.5.9", {"sglang/__init__.py": b""})
    assert main(["patch", "diff", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["patch", "diff", str(tmp_path), "kimi-k25-eagle3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# file missing: kimi-k25-eagle3, sglang 0.5.9\ndiff --git a/sglang/srt/models/kimi_k25.py ")


@pytest.mark.parametrize("action", ["status", "apply", "revert", "diff"])
def test_what_is_no_environment_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    (tmp_path / "python" / "sglang").mkdir(parents=True)
    assert main(["patch", action, str(tmp_path)]) == 2
    assert "no installed packages" in capsys.readouterr().err


def test_an_environment_with_other_packages_has_no_patches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "alpha", "1.0", {"alpha.py": b""})
    assert main(["patch", "status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no installed distribution has patches\n"


def test_packages_for_two_pythons_must_be_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for python in ("python3.11", "python3.12"):
        install(tmp_path / "lib" / python / "site-packages", "alpha", "1.0", {"alpha.py": b""})
    assert main(["patch", "status", str(tmp_path)]) == 2
    assert "packages for more than one Python" in capsys.readouterr().err
    assert main(["patch", "status", str(tmp_path / "lib" / "python3.11" / "site-packages")]) == 0
