#!/usr/bin/env python3
"""Set up the project's own environment in .venv and run nox in it: ``python3 bootstrap.py -s build_cu130``.

Needs Python 3.11 or newer with the venv module and nothing else. A second run re-uses .venv and starts at once
unless pyproject.toml changed. All arguments go to nox.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"


def main() -> None:
    # It is the user of an older Python who needs the message.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"bootstrap.py: Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}")
    python = VENV / "bin" / "python"
    stamp = VENV / "pyproject.sha256"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"bootstrap.py: setting up {VENV}", flush=True)
        venv.create(VENV, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, "--editable", ".[dev]"], cwd=ROOT).returncode:
            sys.exit("bootstrap.py: pip could not install the project; its message is above")
        stamp.write_text(wanted)
    os.chdir(ROOT)
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    os.execve(python, [str(python), "-m", "nox", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
