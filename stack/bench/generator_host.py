"""Runs in the interpreter of the environment under test: imports the load generator once, then forks for each run.

``python -m sglang.bench_serving`` imports torch and most of SGLang, which takes 10 to 20 seconds; a sweep has dozens of
runs. This host imports it once and executes the module as ``__main__`` in a forked child for each command line, so
that every run still starts from a clean process. It uses the standard library and what it is told to run, nothing
of this project, because the environment under test does not have this project installed.

Protocol, one JSON document a line: it writes ``{"ready": true, "threads": n}``, reads ``{"argv": [...], "log": path}``,
writes ``{"pid": n}`` when the child runs and ``{"exit": code}`` when it has ended (negative: killed by that signal).
End of input ends it.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback

MODULE = "sglang.bench_serving"
_PR_SET_PDEATHSIG = 1  # prctl(2)


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(argv: list[str], log: str) -> None:
    """Child only: become the load generator; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [MODULE, *argv]
        # The copy that was imported for its dependencies must not be mistaken for the one that runs.
        sys.modules.pop(MODULE, None)
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def main() -> None:
    """Serve runs until the input ends."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the imports print must not be taken for an answer
    importlib.import_module(MODULE)
    # As Python's manual advises before a fork: a collection in a child then neither walks over the imported objects
    # nor makes the kernel copy their pages.
    gc.collect()
    gc.freeze()
    answers.write(json.dumps({"ready": True, "threads": threading.active_count()}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(order["argv"], order["log"])
        answers.write(json.dumps({"pid": pid}) + "\n")
        _, status = os.waitpid(pid, 0)
        answers.write(json.dumps({"exit": os.waitstatus_to_exitcode(status)}) + "\n")


if __name__ == "__main__":
    main()
