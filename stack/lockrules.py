"""What a lock must not be: a mix of CUDA toolkits, or built on another torch than the stack is defined by."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.requirements import Requirement
from packaging.version import Version

from stack.definition import StackDefinition
from stack.lockfile import Lock

TOOLKIT_PARTS = frozenset(
    {
        "cuda-toolkit",
        "nvidia-nvfatbin",
        "nvidia-nvjitlink",
        "nvidia-nvml-dev",
        "nvidia-nvptxcompiler",
        "nvidia-nvtx",
        "nvidia-nvvm",
    }
)
"""Distributions besides ``nvidia-cuda-*`` whose major.minor is the toolkit's, as the pins of cuda-toolkit 13.0.2 show;
the math libraries (cublas, cufft, …) count versions of their own."""


def toolkit_parts(versions: dict[str, str]) -> dict[str, str]:
    """The distributions that belong to a CUDA toolkit → its major.minor."""
    parts = {}
    for name, version in versions.items():
        plain = re.sub(r"-cu1\d$", "", name)
        if plain.startswith("nvidia-cuda-") or plain in TOOLKIT_PARTS:
            parts[name] = ".".join(map(str, Version(version).release[:2]))
    return parts


def refusals(definition: StackDefinition, lock: Lock, required_by: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Why this lock must not be used, one text a reason; empty for a good lock.

    ``required_by`` tells of a distribution which others require it; it may know of none.
    """
    versions = lock.versions
    return [
        *_toolkit_refusals(definition, versions, required_by),
        *_torch_refusals(definition, versions),
        *_pin_refusals(definition, versions),
    ]


def _toolkit_refusals(
    definition: StackDefinition, versions: dict[str, str], required_by: Mapping[str, tuple[str, ...]]
) -> list[str]:
    toolkits: dict[str, list[str]] = {}
    for name, toolkit in sorted(toolkit_parts(versions).items()):
        others = ", ".join(required_by.get(name, ())) if toolkit != definition.cuda else ""
        toolkits.setdefault(toolkit, []).append(
            f"{name} {versions[name]}" + (f" (required by {others})" if others else "")
        )
    if set(toolkits) <= {definition.cuda}:
        return []
    parts = "; ".join(f"CUDA {toolkit}: {', '.join(names)}" for toolkit, names in sorted(toolkits.items()))
    return [
        f"it has parts of a CUDA toolkit that is not {definition.cuda}: {parts}. "
        "Pin these parts with [[requirements]] or [[overrides]] in the definition"
    ]


def _torch_refusals(definition: StackDefinition, versions: dict[str, str]) -> list[str]:
    # An index's wheel names no CUDA build in its version; what such a wheel is shows once it is installed.
    public = Version(definition.torch).public
    wanted = next((wheel.version for wheel in definition.wheels if wheel.name == "torch"), public)
    if wanted not in (definition.torch, public):
        return [f"the definition's torch wheel is {wanted}, and its torch is {definition.torch}"]
    if versions.get("torch") != wanted:
        return [f"its torch is {versions.get('torch', 'absent')}, and the definition says {definition.torch}"]
    return []


def _pin_refusals(definition: StackDefinition, versions: dict[str, str]) -> list[str]:
    found = []
    for pin in definition.overrides:
        specifier = Requirement(pin.requirement).specifier
        if pin.name not in versions:
            found.append(f"the override {pin.requirement} has no effect: nothing requires {pin.name}; remove it")
        elif not specifier.contains(versions[pin.name], prereleases=True):
            found.append(f"it has {pin.name} {versions[pin.name]} in spite of the override {pin.requirement}")
    for overlap in definition.overlaps:
        for name in {overlap.winner, overlap.over} - versions.keys():
            found.append(f"the overlap of {overlap.winner} and {overlap.over} has no effect: {name} is not in it")
    return found
