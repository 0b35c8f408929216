"""The machine that a verdict is about, and what the source's questions to it would be answered with.

Only questions to hardware, driver, process group and environment are answered here. What the checked source does
with an answer is always read from that source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abi_checks.checks.contracts.values import External, Unknown, Value
from abi_checks.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU type and how many of it are joined in which way.

    ``nvlink`` tells whether all pairs of GPUs are joined by NVLink (then multicast is taken to exist), or only by
    PCIe; None leaves it open. One node is assumed.
    """

    major: int
    minor: int
    gpus: int = 8
    nvlink: bool | None = None

    @property
    def sm(self) -> str:
        """The compute capability as the compiler writes it, ``120`` for 12.0."""
        return f"{self.major}{self.minor}"

    def __str__(self) -> str:
        if self.gpus == 1:
            return f"SM{self.sm}, 1 GPU"
        joined = {True: "NVLink", False: "PCIe", None: "topology not given"}[self.nvlink]
        return f"SM{self.sm}, {self.gpus} GPUs, {joined}"


def parse_target(sm: str, gpus: int = 8, nvlink: bool | None = None) -> Target:
    """A target from ``120``, ``sm_120``, ``12.0`` or ``90a``."""
    digits = sm.lower().removeprefix("sm").removeprefix("_").rstrip("af").replace(".", "")
    if not digits.isdecimal() or len(digits) not in (2, 3):
        raise UsageError(f"{sm!r} is not a compute capability; write 120 for 12.0, 90 for 9.0")
    if gpus < 1:
        raise UsageError(f"a target has at least one GPU, not {gpus}")
    return Target(int(digits[:-1]), int(digits[-1]), gpus, nvlink)


_RUNTIME_PROBES = {
    "in_the_same_node_as": "one node",
    "gpu_p2p_access_check": "peer access",
    "is_full_nvlink": "nvlink",
    "get_platform_worker_cls": "platform",
}
"""Functions of the checked source that do nothing but ask the hardware, by name; elsewhere they are simply unknown."""
NO_PROBE = object()


def probe(name: str, target: Target) -> Value:
    """The answer of a run-time probe that is defined in the checked source; ``NO_PROBE`` where it is no such probe."""
    match _RUNTIME_PROBES.get(name):
        case "one node":
            return [True] * target.gpus
        case "nvlink" if target.nvlink is not None:
            return target.nvlink
        case "peer access" | "nvlink":
            return Unknown(f"{name} asks the hardware")
        case "platform":
            return None  # plugins for other platforms are not asked on an NVIDIA GPU
    return NO_PROBE


def external_call(name: str, arguments: Sequence[Value], target: Target) -> Value:
    """What a function outside the read sources returns on the target."""
    match name:
        case "torch.cuda.is_available":
            return True
        case "torch.cuda.get_device_capability":
            return (target.major, target.minor)
        case "torch.cuda.device_count" | "torch.distributed.get_world_size":
            return target.gpus
        case "torch.distributed.get_rank":
            return 0
        case "torch.xpu.is_available" | "torch.mps.is_available" | "torch.backends.mps.is_available":
            return False
        case "os.getenv" | "os.environ.get":
            # The verdict is for an environment in which no variable overrides a default.
            return arguments[1] if len(arguments) > 1 else None
        case "torch.distributed._symmetric_memory.rendezvous":
            return External("rendezvous handle")
    return Unknown(f"{name}() is not evaluated")


def external_attribute(name: str, target: Target) -> Value:
    """An attribute of something outside the read sources."""
    if name == "rendezvous handle.multicast_ptr":
        # A multicast address needs NVLink SHARP; without NVLink the driver hands out none, and the pointer is 0.
        return Unknown("multicast depends on the topology") if target.nvlink is None else int(target.nvlink)
    return External(name)


def external_has(owner: External, attribute: str) -> bool | None:
    """``hasattr`` on something outside the read sources, for an NVIDIA GPU's host."""
    if owner.name == "torch" and attribute in ("npu", "hpu", "musa", "mlu"):
        return False
    if owner.name == "torch" and attribute in ("cuda", "xpu", "cpu"):
        return True
    return None


def device_properties(target: Target) -> dict[str, Value]:
    """Attributes of ``torch.cuda.get_device_properties``."""
    return {"major": target.major, "minor": target.minor}
