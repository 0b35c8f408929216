"""What a check is: a function from facts to findings, with its explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from abi_checks.findings import Finding
from abi_checks.scan import Scan


@dataclass(frozen=True, slots=True)
class ContractOptions:
    """What to ask of an inference server's source: model classes, a launch as (option, value), and the GPUs' number and
    link; ``nvlink`` is None where it is not known."""

    models: tuple[str, ...] = ()
    launch: tuple[tuple[str, bool | int | float | str], ...] = ()
    gpus: int = 1
    nvlink: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What the user says of the target.

    ``expected`` maps a (normalised) distribution name to the exact version that is meant to be there; ``overrides`` are
    names of distributions whose requirements were set aside on purpose; ``target_sms`` are architectures such as "120".
    """

    expected: Mapping[str, str] = field(default_factory=dict)
    overrides: frozenset[str] = frozenset()
    target_sms: tuple[str, ...] = ()
    contracts: ContractOptions = field(default_factory=ContractOptions)


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``ids`` are the check ids that its findings carry; ``explanation`` is its module's docstring."""

    ids: tuple[str, ...]
    run: Callable[[Scan, CheckOptions], Iterator[Finding]]
    explanation: str
