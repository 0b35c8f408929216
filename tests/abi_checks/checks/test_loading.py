"""Unresolved symbols, missing libraries, mixed CUDA majors, builds and unreadable files, on compiled environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi_checks.api import Options, check_environment, check_source
from abi_checks.checks import CheckOptions
from abi_checks.cli import main
from abi_checks.expectations import Expectations
from abi_checks.findings import Finding, Severity, Waiver
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.selection import running_python
from abi_checks.sources.wheelhouse import wheel_source
from abi_checks.torch_symbols import shipped_table
from tests.abi_checks.environments import SITE_PACKAGES, Environment
from tests.abi_checks.fixtures import compile_object, version_script
from tests.abi_checks.sources.wheels import make_wheel


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def findings(environment: Environment, check: str, **expected: str) -> list[Finding]:
    report = check_environment(environment.root, Expectations(versions=expected))
    return [finding for finding in report.findings if finding.check == check]


OLD = "namespace c10 { namespace cuda { void check(int, bool) {} } struct Log { Log(int) {} }; Log *l = new Log(1); }"
USES_CHECK = (
    "namespace c10 { namespace cuda { void check(int, unsigned, bool); } } void f() { c10::cuda::check(1, 2, true); }"
)
USES_BOTH = USES_CHECK.replace("} void f", "void warn(int); } void f").replace("true);", "true); c10::warn(1);")
USES_WARN = "namespace c10 { void warn(int); } void f() { c10::warn(1); }"
USES_OLD_STRING = """
#define _GLIBCXX_USE_CXX11_ABI 0
#include <string>
namespace torch { void define(std::string); }
void f() { torch::define("x"); }
"""


def test_objects_broken_by_one_torch_stand_under_one_cause(environment: Environment) -> None:
    environment.torch(exports=OLD)
    objects = [
        environment.extension("kernels/one.so", USES_CHECK),
        environment.extension("kernels/two.so", USES_BOTH),
        environment.extension("vision/_C.so", USES_WARN),
    ]
    environment.add("kernels", "1.0", objects[:2], ["torch==2.9.1"])
    found = findings(environment, "unresolved-symbol")
    assert {finding.object for finding in found} == {str(path.relative_to(environment.root)) for path in objects}
    (cause,) = {finding.cause for finding in found}
    assert cause == "torch 2.10.0 does not export c10::cuda::check(int, unsigned int, bool), c10::warn(int)"
    assert {finding.severity for finding in found} == {Severity.ERROR}
    assert [f.distribution for f in found if "kernels" in f.object] == ["kernels==1.0"] * 2


def test_the_old_string_abi_is_a_cause_of_its_own(environment: Environment) -> None:
    environment.torch()
    environment.extension("ao/_C.so", USES_OLD_STRING)
    (finding,) = findings(environment, "unresolved-symbol")
    assert finding.cause.startswith(
        "built with the pre-C++11 std::string, which torch 2.10.0 does not use: torch::define("
    )


def test_cpythons_symbols_are_judged_in_a_lone_wheel_where_its_python_is_here(tmp_path: Path) -> None:
    path = compile_object(tmp_path / "m.so", "int PyNothing_Like(void); int f(void) { return PyNothing_Like(); }")
    python = "".join(map(str, running_python()))
    found = []
    for version in (python, "399"):
        tag = f"cp{version}-cp{version}-linux_{os.uname().machine}"
        wheel = make_wheel(tmp_path, {"m.so": path.read_bytes()}, tag=tag)
        found.append(check_source(wheel_source(wheel), Options()).findings)
    ((finding,), assumed) = found
    assert (finding.check, finding.severity) == ("unresolved-symbol", Severity.ERROR)
    assert finding.cause == "no library in scope defines PyNothing_Like (CPython)"
    assert assumed == ()


def test_where_torch_is_not_in_the_target_the_releases_that_would_do_are_named(
    environment: Environment, tmp_path: Path
) -> None:
    source = "int aoti_torch_device_type_cuda(void); int f(void) { return aoti_torch_device_type_cuda(); }"
    path = environment.extension("bridge/_bridge.so", source, language="c")
    (finding,) = findings(environment, "unresolved-symbol")
    assert (finding.severity, finding.cause) == (
        Severity.ERROR,
        "torch is not in this target, and its symbols are needed: aoti_torch_device_type_cuda",
    )
    first, last = shipped_table().versions[0], shipped_table().versions[-1]
    assert (
        finding.remedy
        == f"install torch {first} to {last} as well, or waive the finding where nothing uses this object"
    )
    wheel = make_wheel(tmp_path, {"m.so": path.read_bytes()}, tag=f"cp312-cp312-linux_{os.uname().machine}")
    (finding,) = [f for f in check_source(wheel_source(wheel), Options()).findings if f.check == "unresolved-symbol"]
    assert finding.severity == Severity.UNKNOWN
    assert finding.remedy.endswith(f"with the torch it will run with; its symbols are those of torch {first} to {last}")


def test_a_symbol_that_lies_out_of_scope_is_said_to_be_there(environment: Environment) -> None:
    environment.torch(exports="namespace c10 { void warn(int) {} }")
    environment.extension("bridge/_bridge.so", USES_WARN)
    (finding,) = findings(environment, "unresolved-symbol")
    assert finding.cause.startswith(
        f"{SITE_PACKAGES}/torch/lib/libc10.so has c10::warn(int), and this object neither links"
    )
    assert "RTLD_GLOBAL" in finding.remedy


def test_a_torch_symbol_is_judged_where_a_library_is_missing_too(environment: Environment, tmp_path: Path) -> None:
    environment.torch()
    gone = compile_object(tmp_path / "libgone.so.1", "void from_gone(void) {}", soname="libgone.so.1")
    environment.extension(
        "x.so", USES_WARN + 'extern "C" void from_gone(void); void g() { from_gone(); }', needs=(gone,)
    )
    assert [f.message for f in findings(environment, "unresolved-symbol")] == ["undefined symbol: c10::warn(int)"]
    assert [f.message for f in findings(environment, "missing-library")] == [
        "needs libgone.so.1, which the loader does not find"
    ]


def test_a_missing_version_of_the_host_is_named(environment: Environment, tmp_path: Path) -> None:
    newer = version_script(tmp_path, "GLIBCXX_9.9.9 { global: from_future; };")
    fake = compile_object(
        tmp_path / "libstdc++.so.6", "int from_future(void) { return 1; }", newer, soname="libstdc++.so.6"
    )
    environment.extension(
        "x.so", "int from_future(void); int f(void) { return from_future(); }", needs=(fake,), language="c"
    )
    (finding,) = [f for f in findings(environment, "unresolved-symbol") if "version" in f.cause]
    assert finding.cause == "libstdc++ on this host lacks version GLIBCXX_9.9.9"


def test_bundled_libraries_that_load_with_others_are_information(environment: Environment) -> None:
    deep = environment.extension("pkg.libs/libdeep-1234.so.1", "int d;", "-Wl,-soname,libdeep-1234.so.1")
    mid = environment.extension("pkg.libs/libmid-1234.so.1", "int m;", "-Wl,-soname,libmid-1234.so.1", needs=(deep,))
    user = environment.extension(
        "pkg/_x.so", "int x;", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../pkg.libs", needs=(mid,)
    )
    environment.add("pkg", "1.0", [deep, mid, user])
    (finding,) = findings(environment, "loads-as-dependency")
    assert (finding.object, finding.severity) == (f"{SITE_PACKAGES}/pkg.libs/libmid-1234.so.1", Severity.INFO)
    assert not findings(environment, "missing-library")


@pytest.mark.parametrize(("requires", "severity"), [(["ffi>=1"], Severity.INFO), ([], Severity.WARNING)])
def test_a_library_opened_by_the_packages_own_code(
    environment: Environment, requires: list[str], severity: Severity
) -> None:
    ffi = environment.extension("ffi/lib/libffi_x.so", "int from_ffi() { return 1; }", "-Wl,-soname,libffi_x.so")
    user = environment.extension("user/_x.so", "int from_ffi(); int f() { return from_ffi(); }", needs=(ffi,))
    environment.add("ffi", "1.0", [ffi])
    environment.add("user", "1.0", [user], requires)
    (finding,) = findings(environment, "loads-after-sibling")
    assert (finding.object, finding.severity) == (f"{SITE_PACKAGES}/user/_x.so", severity)
    assert not findings(environment, "missing-library") and not findings(environment, "unresolved-symbol")


def test_a_sibling_that_fails_itself_is_named_as_the_reason(environment: Environment) -> None:
    audio = environment.extension(
        "audio/lib/libaudio.so", "int gone(); int f() { return gone(); }", "-Wl,-soname,libaudio.so"
    )
    environment.extension("audio/_audio.so", "int f(); int g() { return f(); }", needs=(audio,))
    (finding,) = findings(environment, "missing-library")
    assert finding.cause == f"libaudio.so is there ({SITE_PACKAGES}/audio/lib/libaudio.so) and does not load itself"


@pytest.mark.parametrize(
    ("library", "cause"),
    [
        ("libnvrtc.so.13", "libnvrtc.so.13, the run-time compiler of CUDA 13, is not installed"),
        (
            "libnvrtc-builtins.so.13.0",
            "libnvrtc-builtins.so.13.0, the run-time compiler of CUDA 13.0, is not installed",
        ),
        ("libcudart.so.12", "built for CUDA 12 (libcudart.so.12), and torch has CUDA 13"),
        ("libmlx5.so.1", "libmlx5.so.1 is in no folder that the loader searches"),
    ],
)
def test_missing_libraries_have_causes(environment: Environment, tmp_path: Path, library: str, cause: str) -> None:
    runtime = environment.extension("nvidia/cu13/lib/libcudart.so.13", "int r;", "-Wl,-soname,libcudart.so.13")
    environment.torch()
    deps = environment.site / "torch/lib/libtorch_global_deps.so"
    compile_object(deps, "", "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib", soname=deps.name, needs=(runtime,))
    missing = compile_object(tmp_path / library, "", soname=library)
    environment.extension("x.so", "", needs=(missing,))
    assert [finding.cause for finding in findings(environment, "missing-library")] == [cause]


def test_two_cuda_majors_in_one_process(environment: Environment) -> None:
    for major in ("12", "13"):
        name = f"libcudart.so.{major}"
        environment.extension(f"nvidia/cu{major}/lib/{name}", "int r;", f"-Wl,-soname,{name}")
    environment.torch()
    deps = environment.site / "torch/lib/libtorch_global_deps.so"
    new, old = (environment.site / f"nvidia/cu{major}/lib/libcudart.so.{major}" for major in ("13", "12"))
    compile_object(deps, "", "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib", soname=deps.name, needs=(new,))
    environment.extension("x.so", "int x;", "-Wl,-rpath,$ORIGIN/nvidia/cu12/lib", needs=(old,))
    (finding,) = findings(environment, "cuda-majors")
    assert (finding.object, finding.cause) == (f"{SITE_PACKAGES}/x.so", "CUDA 12 and CUDA 13 in one process")


def test_a_cuda_library_taken_from_the_host(environment: Environment, tmp_path: Path) -> None:
    host = compile_object(tmp_path / "host" / "libcudnn.so.9", "int c;", soname="libcudnn.so.9")
    plain = compile_object(tmp_path / "host" / "libplain.so.1", "int p;", soname="libplain.so.1")
    environment.extension("x.so", "int x;", f"-Wl,-rpath,{host.parent}", needs=(host, plain))
    environment.extension("nvidia/lib/libnccl.so.2", "int n;", "-Wl,-soname,libnccl.so.2")
    inside = environment.site / "nvidia/lib/libnccl.so.2"
    environment.extension("y.so", "int y;", "-Wl,-rpath,$ORIGIN/nvidia/lib", needs=(inside,))
    (finding,) = findings(environment, "outside-library")
    assert (finding.object, finding.severity) == (f"{SITE_PACKAGES}/x.so", Severity.WARNING)
    assert finding.message == f"takes libcudnn.so.9 from {host}"
    assert "torch" not in finding.remedy
    environment.torch()
    (finding,) = findings(environment, "outside-library")
    assert "at the version that torch requires" in finding.remedy


def test_torch_that_is_not_the_defined_build(environment: Environment) -> None:
    environment.torch("2.10.0")
    (finding,) = findings(environment, "unexpected-build", torch="2.9.1+cu130")
    assert finding.message == "torch 2.9.1+cu130 is expected, and 2.10.0 is installed"
    assert not findings(environment, "unexpected-build", torch="2.10.0")


@pytest.mark.parametrize(
    ("installed", "expected", "right"), [("2.9.1", "2.9.1+cu130", False), ("2.9.1+cu130", "2.9.1", True)]
)
def test_the_local_version_counts_where_it_is_expected(
    environment: Environment, installed: str, expected: str, right: bool
) -> None:
    environment.torch(installed)
    assert (findings(environment, "unexpected-build", torch=expected) == []) is right


def test_import_torch_that_fails_is_said(environment: Environment, tmp_path: Path) -> None:
    environment.torch()
    deps = environment.site / "torch/lib/libtorch_global_deps.so"
    gone = compile_object(tmp_path / "libgone.so.13", "", soname="libgone.so.13")
    compile_object(deps, "", soname=deps.name, needs=(gone,))
    (finding,) = findings(environment, "torch-import")
    assert (finding.object, finding.cause) == (
        f"{SITE_PACKAGES}/torch/lib/libtorch_global_deps.so",
        "import torch fails",
    )


def damaged(site: Path) -> Iterator[tuple[str, str]]:
    """(object, part of what is said) of each damaged file made below ``site``."""
    whole = compile_object(site / "whole.so", "int x;").read_bytes()
    (site / "cut.so").write_bytes(whole[:2000])
    yield "cut.so", "cut short"
    (site / "empty.so").write_bytes(b"")
    yield "empty.so", "no ELF file"
    (site / "text.so").write_text("INPUT(libx.so)")
    yield "text.so", "not with the ELF magic number"
    (site / "gone.so").symlink_to("nowhere.so")
    yield "gone.so", "broken symbolic link"
    compile_object(site / "static.so", "int main(void) { return 0; }", "-static", "-no-pie", shared=False)
    yield "static.so", "a static object can't be loaded"


def test_damaged_files_are_findings(environment: Environment) -> None:
    expected = dict(damaged(environment.site))
    (environment.site / "notes.so.txt").write_text("no claim to be an object")
    os.mkfifo(environment.site / "pipe.so")
    found = {finding.object.rpartition("/")[2]: finding for finding in findings(environment, "unreadable")}
    assert found.keys() == expected.keys()
    for name, said in expected.items():
        assert said in found[name].message, name


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_a_finding(environment: Environment) -> None:
    folder = environment.site / "closed"
    folder.mkdir(mode=0)
    try:
        (finding,) = findings(environment, "unreadable")
    finally:
        folder.chmod(0o700)
    assert finding.message == "folder cannot be read: Permission denied"


def test_waivers_are_bound_to_versions_and_unused_ones_reported(environment: Environment) -> None:
    environment.torch()
    environment.add("vision", "1.0", [environment.extension("vision/_C.so", USES_WARN)])
    for version, code, unused in (("1.0", 0, 0), ("1.1", 1, 1)):
        waiver = Waiver("unresolved-symbol", "vision/*.so", f"vision=={version}", "known")
        report = check_source(FolderSource(environment.root), Options(waivers=(waiver,), checks=CheckOptions()))
        assert report.exit_code == code
        assert sum(finding.check == "unused-waiver" for finding in report.findings) == unused


def for_aarch64(path: Path) -> Path:
    """The object with another machine in its header."""
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    path.write_bytes(data)
    return path


def test_a_distribution_for_another_machine_is_an_error(environment: Environment) -> None:
    foreign = [for_aarch64(environment.extension(f"arm/{name}.so", "int x;")) for name in ("a", "b")]
    environment.add("arm", "1.0", foreign)
    found = findings(environment, "wrong-machine")
    assert [(f.object, f.severity) for f in found] == [
        (f"{SITE_PACKAGES}/arm/{name}.so", Severity.ERROR) for name in ("a", "b")
    ]
    (cause,) = {finding.cause for finding in found}
    assert cause == f"arm==1.0 is built for another machine: AArch64, 64 bits, and this is {os.uname().machine}"


def test_objects_for_other_machines_beside_those_for_this_one_are_only_said(environment: Environment) -> None:
    both = [environment.extension("both/here.so", "int x;"), environment.extension("both/there.so", "int x;")]
    for_aarch64(both[1])
    environment.add("both", "1.0", both)
    assert findings(environment, "wrong-machine") == []
    (finding,) = findings(environment, "not-loadable")
    assert (finding.object, finding.severity) == (f"{SITE_PACKAGES}/both/there.so", Severity.WARNING)


def test_a_wheel_and_a_lone_object_for_another_machine(tmp_path: Path) -> None:
    path = for_aarch64(compile_object(tmp_path / "objects" / "m.so", "int x;"))
    wheel = make_wheel(tmp_path, {"m.so": path.read_bytes()}, tag="cp312-cp312-manylinux_2_28_aarch64")
    assert main([str(wheel)]) == 1
    assert main([str(path)]) == 1
