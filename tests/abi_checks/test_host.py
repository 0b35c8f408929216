"""What is read of the machine: NVML through a stand-in library, compilers from their build strings."""

from pathlib import Path

import pytest

from abi_checks import host
from tests.abi_checks.fixtures import compile_object

NVML = """
int nvmlInit_v2(void) { return %(init)d; }
int nvmlSystemGetCudaDriverVersion_v2(int *number) { *number = 13010; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    if ((long)device == 3) return 999;
    *major = (long)device == 1 ? 12 : 9; *minor = 0; return 0;
}
"""


def test_gpus_are_asked_of_nvml(tmp_path: Path) -> None:
    library = compile_object(tmp_path / "libnvidia-ml.so.1", NVML % {"init": 0})
    assert host._ask_nvml(str(library)) == ((13, 1), (90, 120), "")


def test_an_nvml_that_does_not_start_is_named(tmp_path: Path) -> None:
    library = compile_object(tmp_path / "libnvidia-ml.so.1", NVML % {"init": 18})
    assert host._ask_nvml(str(library)) == (None, (), "NVML can't be started (nvmlInit_v2 returns 18)")


def test_a_host_without_driver(tmp_path: Path) -> None:
    release, gpus, problem = host._ask_nvml(str(tmp_path / "absent.so"))
    assert (release, gpus, problem) == (None, (), "this host has no NVIDIA driver (libnvidia-ml.so.1 can't be loaded)")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC 2025\nGCC version: 12\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n",
    ],
)
def test_the_drivers_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(host, "_DRIVER_FILE", tmp_path / "version")
    assert host.read_host.__wrapped__().driver == "580.65.06"


def program(path: Path, text: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def test_release_of_a_compiler(tmp_path: Path) -> None:
    inside = b"\0" * 70000 + b"Build cuda_12.9.r12.9/compiler.36037853_0\0" + b"\0" * 9000
    assert host.read_release(str(program(tmp_path / "ptxas", inside))) == (12, 9)
    assert host.read_release(str(program(tmp_path / "other", b"no build string"))) is None
    assert host.read_release(str(program(tmp_path / "empty", b""))) is None
    assert host.read_release(str(tmp_path / "absent")) is None


def test_nvcc_is_found_as_torch_finds_it(tmp_path: Path) -> None:
    first = program(tmp_path / "a/bin/nvcc", b"Build cuda_13.0.r13.0/compiler.1")
    second = program(tmp_path / "b/bin/nvcc", b"Build cuda_12.8.r12.8/compiler.1")
    environ = {"CUDA_HOME": str(tmp_path / "a"), "PATH": str(second.parent)}
    assert host.find_nvcc(environ) == host.Compiler(str(first), (13, 0), "CUDA_HOME")
    assert host.find_nvcc({"PATH": str(second.parent)}) == host.Compiler(str(second), (12, 8), "PATH")
    assert host.find_nvcc({"CUDA_HOME": str(tmp_path / "c"), "PATH": str(second.parent)}) is None


def test_a_wrapper_script_is_asked(tmp_path: Path) -> None:
    script = program(tmp_path / "bin/nvcc", b"#!/bin/sh\necho 'Build cuda_13.1.r13.1/compiler.3'\n")
    assert host.find_nvcc({"PATH": str(script.parent)}) == host.Compiler(str(script), (13, 1), "PATH")
