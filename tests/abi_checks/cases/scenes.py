"""Small environments in which a public report's cause is present, made of compiled objects and metadata folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.abi_checks.fixtures import compile_object, version_script

SITE = "lib/python3.12/site-packages"


def add_torch(site: Path) -> None:
    """A torch of CUDA 13: what ``import torch`` opens, each library with one symbol of its own."""
    cudart = compile_object(
        site / "nvidia/cu13/lib/libcudart.so.13", "void cudaMalloc(void) {}", soname="libcudart.so.13"
    )
    compile_object(site / "nvidia/nccl/lib/libnccl.so.2", "void ncclSend(void) {}", soname="libnccl.so.2")
    c10 = compile_object(site / "torch/lib/libc10.so", "void _ZN3c107WarningC1Ev(void) {}", soname="libc10.so")
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../nvidia/nccl/lib"
    nccl = site / "nvidia/nccl/lib/libnccl.so.2"
    compile_object(site / "torch/lib/libtorch_global_deps.so", "", rpath, needs=[cudart, nccl])
    compile_object(
        site / "torch/_C.cpython-312-x86_64-linux-gnu.so",
        "",
        "-Wl,-rpath,$ORIGIN/lib:$ORIGIN/../torch/lib",
        needs=[c10],
    )


def add_user(path: Path, symbol: str = "", library: str = "", version: str = "") -> None:
    """An extension that calls ``symbol`` (of ``library`` at ``version``, where given) and needs ``library``."""
    source = f"void {symbol}(void); void use(void) {{ {symbol}(); }}" if symbol else "void use(void) {}"
    needs: list[Path] = []
    if library:
        flags = [version_script(path.parent / "stub", f"{version} {{ global: *; }};")] if version else []
        body = f"void {symbol}(void) {{}}" if symbol else ""
        needs = [compile_object(path.parent / "stub" / "lib.so", body, *flags, soname=library)]
    compile_object(path, source, needs=needs)
    for stub in needs:
        stub.unlink()


def add_distribution(
    site: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    files: Sequence[str] = (),
    folder: str = "",
) -> None:
    """A .dist-info folder; ``files`` (relative to site-packages) are claimed in RECORD and made where missing."""
    info = site / f"{(folder or name.replace('-', '_') + '-' + version)}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *(f"Requires-Dist: {r}\n" for r in requires)]
    (info / "METADATA").write_text("".join(lines))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: tests\nTag: {tag}\n")
    for file in files:
        if not (site / file).exists():
            compile_object(site / file)
    rows = [*files, f"{info.name}/METADATA", f"{info.name}/WHEEL", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{row},,\n" for row in rows))


def add_mixed_majors(site: Path) -> None:
    """torch of CUDA 13, and an extension that brings the CUDA 12 runtime into its process."""
    add_torch(site)
    other = compile_object(site / "nvidia/cuda_runtime/lib/libcudart.so.12", soname="libcudart.so.12")
    compile_object(site / "pkg/ext.so", "", "-Wl,-rpath,$ORIGIN/../nvidia/cuda_runtime/lib", needs=[other])


def build_objects(root: Path, cases: Sequence[Mapping[str, Any]], torch: bool) -> None:
    """One environment, with torch or without, and an extension per case at ``ID/ext.so``."""
    site = root / SITE
    site.mkdir(parents=True)
    if torch:
        add_torch(site)
        add_distribution(site, "torch", "2.10.0")
    for case in cases:
        if "present" in case:
            compile_object(site / case["present"], soname=case["library"])
        add_user(site / case["id"] / "ext.so", case.get("symbol", ""), case.get("library", ""), case.get("version", ""))


def build_distributions(root: Path, case: Mapping[str, Any]) -> None:
    """One environment with the distributions of a case, and its libraries (path below site-packages: soname)."""
    for path, soname in case.get("objects", {}).items():
        compile_object(root / SITE / path, "int f(void) { return 0; }", soname=soname)
    for row in case["distributions"]:
        add_distribution(root / SITE, **row)
