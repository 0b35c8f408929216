"""What the stack is, and how it is locked, built, patched, booted and measured."""

__version__ = "0.1.0"
