"""One short session per job; each is a thin call of a command of this project."""

import sys

import nox

from stack.prefix import environments_in_use

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "tests"]


def _stack(session: nox.Session, *arguments: str) -> None:
    session.run(sys.executable, "-m", "stack", *arguments, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and mypy."""
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
    session.run(sys.executable, "-m", "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, those on real environments included."""
    session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Make the lock files again; ``-- --check`` fails on drift."""
    _stack(session, "lock")


@nox.session
def build_cu130(session: nox.Session) -> None:
    """Build the CUDA 13 stack; options after ``--``: --stack --python --prefix --wheelhouse --mirror."""
    _stack(session, "build")


@nox.session
def verify(session: nox.Session) -> None:
    """Compare the stacks in use with their locks; options after ``--``: --stack --prefix --deep."""
    _stack(session, "verify")


@nox.session
def patch(session: nox.Session) -> None:
    """Source patches of an environment; after ``--``: apply, revert, status or diff, and the environment."""
    _stack(session, "patch")


@nox.session
def abi_check(session: nox.Session) -> None:
    """Judge the stacks in use, or the targets named after ``--``."""
    session.run(sys.executable, "-m", "abi_checks", *(session.posargs or environments_in_use()))


@nox.session
def stable_abi(session: nox.Session) -> None:
    """Write the list of CPython's stable ABI again, from the installed abi3info."""
    session.run(sys.executable, "-m", "abi_checks.stable_abi")


@nox.session
def torch_symbols(session: nox.Session) -> None:
    """Make the table of torch symbols again; ``-- --wheels DIR`` has wheels already, ``-- --reuse`` reads new ones."""
    session.run(sys.executable, "-m", "abi_checks.torch_symbols.build", *session.posargs)


@nox.session
def boot_baseline(session: nox.Session) -> None:
    """Boot the baseline profile; options after ``--``: --stack --profile --models --draft --tp --url."""
    _stack(session, "boot", "--profile", "baseline")


@nox.session
def boot_eagle3(session: nox.Session) -> None:
    """Boot baseline and EAGLE-3 and compare them; options after ``--`` as for boot_baseline."""
    _stack(session, "boot", "--profile", "eagle3", "--compare", "baseline")


@nox.session
def wheelhouse(session: nox.Session) -> None:
    """Everything a host without a network needs; after ``--``: --stack NAME --out DIR [--split 60M]."""
    _stack(session, "wheelhouse")


@nox.session
def lock_tool(session: nox.Session) -> None:
    """Lock this project's own requirements, for hosts without a network and for the image."""
    command = (
        "uv",
        "pip",
        "compile",
        "pyproject.toml",
        "--group",
        "offline",
        "--universal",
        "--python-version",
        "3.11",
    )
    form = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet")
    session.run(sys.executable, "-m", *command, *form, "--output-file", "lockfiles/tool.txt", *session.posargs)


@nox.session
def contracts(session: nox.Session) -> None:
    """What SGLang's source does with a model and a GPU; options after ``--``: ENV --model --target-sm --profile."""
    _stack(session, "contracts")


@nox.session
def bench_baseline(session: nox.Session) -> None:
    """2,048 tokens of one stream, ten times; after ``--``: --url or --profile, --runs, --output-tokens."""
    _stack(session, "bench", "baseline")


@nox.session
def bench_eagle3(session: nox.Session) -> None:
    """The same with EAGLE-3."""
    _stack(session, "bench", "eagle3")


@nox.session
def bench_sweep(session: nox.Session) -> None:
    """Every level of concurrency, in rounds; after ``--``: --url or --profile, --levels, --rounds."""
    _stack(session, "bench", "sweep")


@nox.session
def bench_crossover(session: nox.Session) -> None:
    """Up to which concurrency speculation pays; after ``--``: result files, two URLs, or nothing to boot both arms."""
    _stack(session, "bench", "crossover")


@nox.session
def image(session: nox.Session) -> None:
    """Build a container image; after ``--``: --stack NAME [--stand-in] [--python X.Y] [--wheelhouse DIR]."""
    _stack(session, "image")


@nox.session
def fuzz(session: nox.Session) -> None:
    """100,000 mutants of ELF objects and 5,000 of wheels; the tests run a short form."""
    for kind, mutants in (("elf", "100000"), ("wheel", "5000")):
        session.run(sys.executable, "-m", "tests.fuzz.mutants", "--kind", kind, "--mutants", mutants, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/; ``-- serve`` shows it while it is written."""
    session.run(sys.executable, "-m", "mkdocs", *(session.posargs or ("build", "--strict")))
