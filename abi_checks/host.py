"""What the machine at hand has: NVIDIA driver, GPUs, and the CUDA compilers that run-time compilation finds.

The driver's version is read from procfs, the GPUs' compute capabilities from NVML, and a compiler's release from the
build string that each program of the CUDA toolkit carries. Only an nvcc of the host that has none, as wrapper scripts
have none, is asked with ``--version``; nothing of a target is ever executed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Kernel Module.*?\s(\d{3}\.[\d.]+\d)\s")
_BUILD = b"Build cuda_"
_RELEASE = re.compile(rb"Build cuda_(\d+)\.(\d+)\.")
HOME_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
# nvml.h, NVML_SUCCESS.
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Host:
    """The machine at hand. ``driver`` is the NVIDIA driver's version, or ""."""

    driver: str
    driver_cuda: tuple[int, int] | None
    """The CUDA release (major, minor) that the driver came with, or None."""
    gpus: tuple[int, ...]
    """Compute capability times ten of each kind of GPU, sorted."""
    gpu_problem: str
    """Why ``gpus`` is empty."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A program of a CUDA toolkit; ``release`` is (major, minor), or None where it carries no build string."""

    path: str
    release: tuple[int, int] | None
    found_via: str


@cache
def read_host() -> Host:
    """The driver and the GPUs of this machine."""
    try:
        text = _DRIVER_FILE.read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    match = _DRIVER_VERSION.search(text)
    return Host(match[1] if match else "", *_ask_nvml("libnvidia-ml.so.1"))


def _ask_nvml(library: str) -> tuple[tuple[int, int] | None, tuple[int, ...], str]:
    """Ask NVML, the driver's management library: its CUDA release, the GPUs' capabilities and why there are none.

    By ctypes, since importing the ``pynvml`` module takes longer than judging a wheel.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None, (), "this host has no NVIDIA driver (libnvidia-ml.so.1 can't be loaded)"
    status = nvml.nvmlInit_v2()
    if status != _SUCCESS:
        return None, (), f"NVML can't be started (nvmlInit_v2 returns {status})"
    try:
        number, count = ctypes.c_int(), ctypes.c_uint()
        release = None
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == _SUCCESS:
            release = (number.value // 1000, number.value % 1000 // 10)
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return release, (), "NVML can't count the GPUs"
        found = set()
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == _SUCCESS and (
                nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == _SUCCESS
            ):
                found.add(major.value * 10 + minor.value)
        return release, tuple(sorted(found)), "" if found else "this host has a driver and no GPU that can be asked"
    finally:
        nvml.nvmlShutdown()


def find_nvcc(environ: Mapping[str, str]) -> Compiler | None:
    """The nvcc that run-time compilation uses.

    Order of torch.utils.cpp_extension (torch 2.9, ``_find_cuda_home``): CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda.
    """
    for variable in HOME_VARIABLES:
        if environ.get(variable):
            path = os.path.join(environ[variable], "bin", "nvcc")
            return _nvcc(path, variable)
    found = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    return _nvcc(found, "PATH") if found else _nvcc("/usr/local/cuda/bin/nvcc", "default folder")


def _nvcc(path: str, found_via: str) -> Compiler | None:
    if not os.path.isfile(path):
        return None
    return Compiler(path, read_release(path) or _ask_release(path), found_via)


@cache
def _ask_release(path: str) -> tuple[int, int] | None:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, timeout=20, start_new_session=True, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _RELEASE.search(answer)
    return (int(match[1]), int(match[2])) if match else None


@cache
def read_release(path: str) -> tuple[int, int] | None:
    """CUDA release of a compiler such as nvcc or ptxas, read from the file; None where it can't be told."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # Backwards: the string lies in the last third of each of these programs.
            at = data.rfind(_BUILD)
            match = _RELEASE.match(data[at : at + 40]) if at >= 0 else None
    except (OSError, ValueError):
        return None
    return (int(match[1]), int(match[2])) if match else None
