"""The checks, in the order in which they run. Each is a function from facts to findings; see ``interface.py``."""

from abi_checks.checks import cuda_majors, missing_libraries, torch_build, unreadable, unresolved_symbols
from abi_checks.checks.interface import Check, CheckOptions

CHECKS: tuple[Check, ...] = (
    unresolved_symbols.CHECK,
    missing_libraries.CHECK,
    cuda_majors.CHECK,
    torch_build.CHECK,
    unreadable.CHECK,
)

__all__ = ["CHECKS", "Check", "CheckOptions"]
