"""Versions of distributions."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def same_version(one: str, other: str) -> bool:
    """Whether two texts are the same version (PEP 440: ``1.0`` is ``1.0.0``)."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
