"""Which torch releases export which symbols, from the table that is shipped with this package.

The table has every release that ``releases.toml`` lists, in the build for Linux x86-64 that the public index carries by
default. Another build of the same release (``+cu130``, AArch64) exports the same C++ interface with rare exceptions in
CUDA code, so an answer here is evidence about a release, not about one file.
"""

from abi_checks.torch_symbols.compatibility import (
    NO_RELEASE,
    Compatibility,
    Conflict,
    Need,
    compatibility,
    release_ranges,
)
from abi_checks.torch_symbols.needs import names_of_torch
from abi_checks.torch_symbols.table import SymbolTable, covers, shipped_table

__all__ = [
    "NO_RELEASE",
    "Compatibility",
    "Conflict",
    "Need",
    "SymbolTable",
    "compatibility",
    "covers",
    "names_of_torch",
    "release_ranges",
    "shipped_table",
]
