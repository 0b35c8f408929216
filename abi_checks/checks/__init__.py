"""The checks, in the order in which they run. Each is a function from facts to findings; see ``interface.py``."""

from abi_checks.checks import (
    companion_libraries,
    cuda_compilers,
    cuda_majors,
    cuda_toolkit,
    duplicate_libraries,
    jit_caches,
    missing_libraries,
    outside_libraries,
    record_collisions,
    requirements,
    sglang_contracts,
    sm_coverage,
    static_tls,
    torch_build,
    torch_releases,
    unreadable,
    unresolved_symbols,
    wheel_tags,
)
from abi_checks.checks.interface import Check, CheckOptions, ContractOptions

CHECKS: tuple[Check, ...] = (
    unresolved_symbols.CHECK,
    missing_libraries.CHECK,
    static_tls.CHECK,
    cuda_majors.CHECK,
    torch_build.CHECK,
    torch_releases.CHECK,
    unreadable.CHECK,
    duplicate_libraries.CHECK,
    outside_libraries.CHECK,
    companion_libraries.CHECK,
    record_collisions.CHECK,
    requirements.CHECK,
    wheel_tags.CHECK,
    cuda_toolkit.CHECK,
    cuda_compilers.CHECK,
    jit_caches.CHECK,
    sm_coverage.CHECK,
    sglang_contracts.CHECK,
)

__all__ = ["CHECKS", "Check", "CheckOptions", "ContractOptions"]
