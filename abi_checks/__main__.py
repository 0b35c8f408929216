"""``python -m abi_checks`` is ``abi-check``."""

from abi_checks.cli import program

program()
