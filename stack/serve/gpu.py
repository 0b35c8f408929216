"""The GPUs a server will run on, read through NVML (library nvidia-ml-py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from abi_checks.errors import SourceError, UsageError
from stack.serve.process import command_line

_HELD_BY_OTHERS = 1 << 30
"""Bytes in use on a GPU from which on it counts as taken; an idle driver holds some hundred MiB."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``sm`` is the compute capability without the dot, memory is in bytes, ``holders`` are processes."""

    index: int
    name: str
    sm: str
    memory_total: int
    memory_used: int
    holders: tuple[str, ...]


@contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SourceError(
            f"no NVIDIA GPU can be used here ({error}): a driver and its libnvidia-ml.so.1 are needed; run this on a "
            f"GPU host, or judge a server that is already running with --url"
        ) from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str:
    """The NVIDIA driver's version."""
    with _nvml():
        return _text(pynvml.nvmlSystemGetDriverVersion())


def visible_gpus(count: int) -> tuple[Gpu, ...]:
    """The first ``count`` GPUs that CUDA_VISIBLE_DEVICES leaves. Raises UsageError where there are fewer."""
    with _nvml():
        handles = list(_visible_handles())
        if len(handles) < count:
            raise UsageError(f"{count} GPUs are asked for and {len(handles)} can be used; lower --tp")
        return tuple(_read(handle) for handle in handles[:count])


def memory_by_process(count: int) -> tuple[dict[int, int], ...]:
    """Bytes that each process holds, by process id, on each of the first ``count`` visible GPUs.

    A driver that sees other process ids than this container gives those; one that hides sizes gives none.
    """
    with _nvml():
        return tuple(
            {process.pid: int(process.usedGpuMemory) for process in _processes(handle) if process.usedGpuMemory}
            for handle in list(_visible_handles())[:count]
        )


def _processes(handle: object) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return []


def _visible_handles() -> Iterator[object]:
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        names = ",".join(str(index) for index in range(pynvml.nvmlDeviceGetCount()))
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            if name.isdigit():
                yield pynvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                yield pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError as error:
            raise UsageError(f"CUDA_VISIBLE_DEVICES names {name!r}, which NVML does not know: {error}") from error


def _read(handle: object) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=int(pynvml.nvmlDeviceGetIndex(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        sm="{}{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_total=int(memory.total),
        memory_used=int(memory.used),
        holders=tuple(_holder(process.pid, process.usedGpuMemory) for process in _processes(handle)),
    )


def _holder(pid: int, used: int | None) -> str:
    size = f", {used / 2**30:.1f} GiB" if used else ""
    return f"process {pid}{size} ({command_line(pid) or 'not visible from here'})"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def require_free(gpus: tuple[Gpu, ...]) -> None:
    """Raise UsageError, naming the processes, where others hold memory of a GPU. Nobody's process is ended."""
    taken = [gpu for gpu in gpus if gpu.memory_used > _HELD_BY_OTHERS]
    if taken:
        lines = []
        for gpu in taken:
            holders = "; ".join(gpu.holders) or "NVML names no process (it may run in another container)"
            lines.append(
                f"GPU {gpu.index}: {gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB: {holders}"
            )
        raise UsageError(
            "GPU memory is held by others: " + " | ".join(lines) + ". End them, choose other GPUs with "
            "CUDA_VISIBLE_DEVICES, or give --share-gpu to start beside them"
        )
