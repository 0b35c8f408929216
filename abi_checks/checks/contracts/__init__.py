"""Static contracts of an installed SGLang.

What its speculation asks of model classes, where it leaves a GPU out, and what it will do with the options of a launch.
The checked packages are parsed, never imported or executed.
"""

from abi_checks.checks.contracts.report import check_sglang

__all__ = ["check_sglang"]
