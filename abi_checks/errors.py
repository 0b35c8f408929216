"""Errors meant for people; the exit code lives on the exception class.

Exit codes of every command of this project: 0 clean, 1 findings of severity error, 2 usage,
3 a source, file or host that could not be read or reached.
"""


class UserError(Exception):
    """A failure whose message says what happened, to which file, why, and what to do next."""

    exit_code = 1


class UsageError(UserError):
    """The command line or a definition asks for something that makes no sense."""

    exit_code = 2


class SourceError(UserError):
    """A source, file or host could not be read or reached."""

    exit_code = 3
