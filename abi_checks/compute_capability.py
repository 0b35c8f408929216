"""Which device code runs on which GPU.

Source: CUDA programming guide 13, sections "Binary Compatibility", "PTX Compatibility" and "Architecture-Specific,
Family-Specific Features" (its table "Family-Specific Compatibility").
"""

from __future__ import annotations

import re

from abi_checks.errors import UsageError
from abi_checks.fatbin import CodeKind, DeviceCode

FAMILIES = {100: (100, 103), 103: (103,), 110: (110,), 120: (120, 121), 121: (121,)}
"""Capability of ``f`` code → the capabilities it runs on."""
INTEGRATED = frozenset({53, 62, 72, 87, 101, 110})
"""Tegra (Jetson, DRIVE, Thor): machine code is not compatible between these and other GPUs, nor among them."""
_NAME = re.compile(r"(?:sm_?)?(?:(\d{1,2})\.(\d)|(\d{2,3}))[af]?", re.IGNORECASE)


def parse_capability(text: str) -> int:
    """Compute capability times ten, from ``120``, ``12.0``, ``sm_120`` or ``sm_120a``.

    A GPU has no suffix, so one is dropped. Raises UsageError for anything else.
    """
    match = _NAME.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is no compute capability; write 120, 12.0 or sm_120")
    return int(match[3]) if match[3] else int(match[1]) * 10 + int(match[2])


def dotted(capability: int) -> str:
    """``12.0`` for 120."""
    return f"{capability // 10}.{capability % 10}"


def runs_as_is(code: DeviceCode, capability: int) -> bool:
    """Whether a GPU of that compute capability runs this machine code."""
    if code.kind is not CodeKind.SM:
        return False
    if code.suffix:
        return _suffix_allows(code, capability)
    if code.capability == capability:
        return True
    return (
        code.capability // 10 == capability // 10
        and code.capability < capability
        and not {code.capability, capability} & INTEGRATED
    )


def can_be_compiled(code: DeviceCode, capability: int) -> bool:
    """Whether a driver that knows this PTX version can compile it for a GPU of that compute capability."""
    if code.kind is not CodeKind.PTX:
        return False
    return _suffix_allows(code, capability) if code.suffix else code.capability <= capability


def release_of_ptx(version: tuple[int, int]) -> tuple[int, int] | None:
    """The first CUDA release (major, minor) whose drivers compile PTX of that version; None where it isn't known.

    Source: PTX ISA manual, "Release Notes", "PTX Release History": 7.x came with CUDA 11.x; 8.x with 12.x, 8.6 of
    them with 12.7; 9.x with 13.x.
    """
    major, minor = version
    if major == 8:
        return (12, minor if minor < 6 else minor + 1)
    return (major + 4, minor) if major in (7, 9) else None


def _suffix_allows(code: DeviceCode, capability: int) -> bool:
    if code.suffix == "f":
        return capability in FAMILIES.get(code.capability, (code.capability,))
    return capability == code.capability
