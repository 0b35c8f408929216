"""Caches of compiled kernels, with objects made for another CUDA."""

from pathlib import Path

import pytest

from abi_checks.checks.jit_caches import cache_folders, judge
from tests.abi_checks.fixtures import compile_object


def kernel(path: Path, major: int) -> None:
    library = compile_object(path.parent / "x" / f"libcudart.so.{major}.stub", soname=f"libcudart.so.{major}")
    compile_object(path, "int run(void) { return 0; }", needs=[library])


def test_objects_of_another_major_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cache/flashinfer"
    kernel(folder / "0.6.4/120a/cached_ops/norm/norm.so", 12)
    kernel(folder / "0.6.4/120a/cached_ops/page/page.so", 13)
    (folder / "half-written.so").write_bytes(b"\x7fELF")
    (finding,) = judge(13, [folder])
    assert finding.object == "~/.cache/flashinfer"
    assert finding.message == "cached objects compiled for CUDA 12, the runtime here is 13 (1)"
    assert finding.evidence == ("0.6.4/120a/cached_ops/norm/norm.so needs libcudart.so.12",)
    assert str(tmp_path) not in repr(finding)


def test_caches_follow_their_variables(tmp_path: Path) -> None:
    for folder in (".triton/cache", "elsewhere/.cache/flashinfer", "extensions"):
        (tmp_path / folder).mkdir(parents=True)
    environ = {
        "HOME": str(tmp_path),
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "elsewhere"),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
    }
    assert cache_folders(environ) == [
        tmp_path / "elsewhere/.cache/flashinfer",
        tmp_path / ".triton/cache",
        tmp_path / "extensions",
    ]
    assert cache_folders({"HOME": str(tmp_path / "nobody")}) == []
