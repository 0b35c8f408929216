"""What NVML says, with NVML's answers put in its mouth."""

from types import SimpleNamespace

import pynvml
import pytest

from abi_checks.errors import SourceError, UsageError
from stack.cli import main
from stack.serve.gpu import require_free, visible_gpus


@pytest.fixture
def two_gpus(monkeypatch):
    def handle(index):
        if index not in (0, 1):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": lambda gpu: gpu,
        "nvmlDeviceGetName": lambda gpu: "NVIDIA Test",
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: (12, 0),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=96 << 30, used=(90 << 30) if gpu else 1 << 20),
        "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=1, usedGpuMemory=89 << 30)] * gpu,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_as_it_is(two_gpus):
    first, second = visible_gpus(2)
    assert (first.index, first.name, first.sm, first.memory_total) == (0, "NVIDIA Test", "120", 96 << 30)
    assert second.holders[0].startswith("process 1, 89.0 GiB (")
    require_free((first,))
    with pytest.raises(UsageError, match=r"GPU 1: 90\.0 of 96\.0 GiB: process 1, 89\.0 GiB"):
        require_free((first, second))


def test_the_visible_ones_count(two_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in visible_gpus(1)] == [1]
    with pytest.raises(UsageError, match="2 GPUs are asked for and 1 can be used"):
        visible_gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES names '7'"):
        visible_gpus(1)


def test_without_a_driver_the_command_stops_at_once(monkeypatch, capsys, tmp_path):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with pytest.raises(SourceError):
        visible_gpus(1)
    assert main(["boot", "--prefix", str(tmp_path)]) == 3
    assert "no NVIDIA GPU can be used here" in capsys.readouterr().err
